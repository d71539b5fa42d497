"""The embedded data: a generated hiring history with a real disparity."""

from __future__ import annotations

import numpy as np

from fairfate.data.groups import Groups
from fairfate.data.table import Table
from fairfate.errors import check

FEATURES = ("experience", "test_score", "referral", "commute", "field", "sex")


def synthetic(rows: int = 6000, seed: int = 0) -> Table:
    """Generate applicants and whether they were hired in the past.

    The mechanism, for each applicant:

    - ``sex`` is female (group 0) or male (group 1, privileged), half each;
    - ability is N(0, 1) in both groups; ``experience`` and ``test_score`` measure it with noise N(0, 1) and
      N(0, 0.7), and women's experience is 0.5 lower (career breaks);
    - ``referral`` is a yes/no proxy: 20 % of the women and 55 % of the men know an insider;
    - ``field`` is one of four, with other shares in the two groups, and of no use for the job;
    - ``commute`` is noise;
    - past decisions hired when ``ability + 0.9 referral + 0.5 male + N(0, 0.5) > 0.8``.

    So labels are unequal (about 31 % of the women and 57 % of the men were hired) for reasons that are only
    partly about ability. A Dirichlet partition gives some clients hardly any hired women, and averaging
    their models by size carries that into the global model.

    Parameters
    ----------
    rows : number of applicants
    seed : the generator's seed
    """
    check(20 <= rows <= 100_000_000, "synthetic rows must be >= 20 and <= 100,000,000", rows)
    check(seed >= 0, "synthetic seed must be >= 0", seed)
    rng = np.random.default_rng(seed)
    male = rng.integers(0, 2, rows)
    ability = rng.normal(size=rows)
    experience = ability - 0.5 * (1 - male) + rng.normal(size=rows)
    test_score = ability + rng.normal(scale=0.7, size=rows)
    referral = rng.random(rows) < np.where(male == 1, 0.55, 0.20)
    commute = rng.gamma(2.0, 15.0, rows)
    shares = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]).cumsum(axis=1)
    studied = (rng.random(rows)[:, None] > shares[male]).sum(axis=1).clip(max=3)
    hired = ability + 0.9 * referral + 0.5 * male + rng.normal(scale=0.5, size=rows) > 0.8
    return Table(
        name="synthetic",
        embedded=True,
        features=np.stack([experience, test_score, referral, commute, studied, male], axis=1).astype(
            np.float64
        ),
        label=hired.astype(np.int8),
        group=male.astype(np.int16),
        feature_names=FEATURES,
        label_names=("not hired", "hired"),
        grouping=Groups.single("sex", ("female", "male")),
        categories={"field": ("arts", "business", "engineering", "science")},
        target="hired",
    )
