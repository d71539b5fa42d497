"""docs/methods.md: every strategy and step with its equations, reference and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import starmap
from typing import NamedTuple

from fairfate.errors import plain
from fairfate.strategies import STEPS, Need, Setup, entries, parse_spec
from fairfate.strategies.hyperparameters import ObjectiveSetting, Setting
from fairfate.strategies.registry import Entry

HEAD = """\
# Methods

The equations, reference and hyperparameters (with defaults and ranges) of every strategy and step. `fairfate strategies` prints a line about
each. See also how they are [combined](strategies.md), [which to choose](choosing.md) and [what clients send](privacy.md).

| sign | is |
| --- | --- |
| {θ}, {θ_k} | the server's model at the start of a round; client {k}'s after training |
| {Δ_k} = {θ_k} − {θ} | the client's update |
| {n_k}, {n} | rows of client {k}; of all clients of the round |
| {α_N} = {Σ_k} ({n_k} / {n}) {Δ_k} | the mean update, by rows |
| {t}, {T} | the round, from 1; the number of rounds |
| {F}(·) | the fairness objective on the server's validation rows, in [0, 1]; 1 is fair |
| {s}, {y}, {ŷ} | a row's group, label and prediction |
| {p} | the predicted probability of the favourable outcome |
| BCE | binary cross-entropy, the usual loss of a row |

A method without a rule for the server's model averages: {θ ← θ + α_N}. `metric` is an
[objective](strategies.md#objectives-what-fair-means-to-a-strategy), by default the run's `--metric`. The rules are those of the protocol
`paper`; see [deviations](deviations.md) for `published`.
"""

NEEDS = {
    Need.SCORES: "scores of clients' models on validation rows",
    Need.LOCAL: "a measurement at each client, which stays there",
    Need.REPORTS: "sums by group and label from each client",
    Need.ROWS: "row counts of the round's clients",
    Need.ALL_ROWS: "row counts of all clients",
    Need.TRIALS: "trials on validation rows",
    Need.DESCENT: "a step on the server's validation rows",
}


class Method(NamedTuple):
    """What a paper says."""

    title: str
    reference: str
    rules: tuple[tuple[str, str], ...]
    """Equations, each with the same in words."""
    more: str = ""


DEMON = (
    "β_t = β_0 (1 − t/T) / ((1 − β_0) + β_0 (1 − t/T))",
    "momentum falls from nearly β_0 to 0 in the last round",
)

METHODS = {
    "fedavg": Method(
        "Federated averaging",
        "McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from"
        " Decentralized Data, AISTATS 2017",
        (("θ ← θ + α_N", "add the clients' mean update, weighted by their rows"),),
        "The reference for all others. It does not look at groups.",
    ),
    "fedmom": Method(
        "Federated averaging with momentum",
        "Liu, Chen, Chen, Zhang: Accelerating Federated Learning via Momentum Gradient Descent, IEEE TPDS 2020,"
        " doi 10.1109/TPDS.2020.2975189",
        (
            ("v ← β v + (1 − β) α_N", "a running mean of the mean updates"),
            ("θ ← θ + v", "move by it"),
        ),
    ),
    "feddemon": Method(
        "Federated averaging with decaying momentum",
        "Fernandes, Silva, Arrais, Cardoso, Ribeiro: Decay Momentum for Improving Federated Learning, ESANN 2021,"
        " doi 10.14428/esann/2021.ES2021-106",
        (DEMON, ("v ← β_t v + (1 − β_t) α_N", "as in `fedmom`"), ("θ ← θ + v", "move by it")),
    ),
    "fedadam": Method(
        "FedAdam",
        "Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021,"
        " arXiv 2003.00295",
        (
            ("m ← β_1 m + (1 − β_1) α_N", "a running mean of the mean updates"),
            ("v ← β_2 v + (1 − β_2) α_N^2", "and of their squares"),
            ("θ ← θ + η m / (√v + τ)", "each parameter has its own step size; η is `rate`"),
        ),
        "`correction=flower` also scales η as Flower's FedAdam does.",
    ),
    "fedyogi": Method(
        "FedYogi",
        "Reddi et al. 2021, as above",
        (
            ("v ← v − (1 − β_2) α_N^2 sign(v − α_N^2)", "squares change more slowly than in `fedadam`"),
            ("θ ← θ + η m / (√v + τ)", "as in `fedadam`"),
        ),
    ),
    "fedprox": Method(
        "FedProx",
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,"
        " arXiv 1812.06127",
        (
            (
                "loss_k = mean of BCE + (μ/2) ‖θ_k − θ‖^2",
                "a penalty on the distance from the received model",
            ),
        ),
    ),
    "fedavg_lr": Method(
        "Local reweighing",
        "Abay, Zhou, Baracaldo, Rajamoni, Chuba, Ludwig: Mitigating Bias in Federated Learning, arXiv 2012.02447,"
        " 2020; the weights are those of Kamiran and Calders 2012",
        (
            (
                "w(s, y) = P_k(s) P_k(y) / P_k(s, y)",
                "under these weights group and label are independent; 1 for an empty stratum",
            ),
            ("loss_k = mean of w(s, y) · BCE", "each client weighs its own rows by its own counts"),
        ),
        "A client's counts stay with it.",
    ),
    "fedavg_gr": Method(
        "Global reweighing",
        "Abay et al. 2020, as above",
        (
            ("w(s, y) = P(s) P(y) / P(s, y)", "from the rows of all clients of the round together"),
            ("loss_k = mean of w(s, y) · BCE", "all clients use the same weights"),
        ),
        "`counts=once`: from the rows of all clients of the federation, so that the weights never change.",
    ),
    "fedval": Method(
        "Averaging by fairness",
        "Mehrabi, de Lichy, McKay, He, Campbell: Towards Multi-Objective Statistically Fair Federated Learning,"
        " arXiv 2201.09917, 2022",
        (
            (
                "F_k = F(θ_k)",
                "how fair each client's model is on the validation rows; 0 where that is undefined",
            ),
            (
                "θ ← Σ_k (F_k + c)^κ θ_k / Σ_k (F_k + c)^κ",
                "average the models by it; c is `floor`, κ is `sharpness`",
            ),
        ),
        "Several metrics at once are an objective such as `sp+accuracy`. `min_mcc`: models with a lower MCC do not count; if none has more, all count by their rows (ours).",
    ),
    "fair_fate": Method(
        "FAIR-FATE",
        "Salazar, Fernandes, Araújo, Abreu: FAIR-FATE: Fair Federated Learning with Momentum, ICCS 2023,"
        " doi 10.1007/978-3-031-35995-8_37",
        (
            ("S_t = {k : F(θ_k) ≥ F(θ)}", "the fair set: clients at least as fair as the server's model"),
            (
                "α_F = Σ_{k ∈ S} F_k Δ_k / Σ_{k ∈ S} F_k",
                "their mean update, by fairness; 0 if the set is empty",
            ),
            DEMON,
            ("v ← β_t v + (1 − β_t) α_F", "a running mean of the fair updates"),
            ("λ_t = min(λ_0 (1 + ρ)^t, MAX)", "the share of fairness grows"),
            ("θ ← θ + λ_t v + (1 − λ_t) α_N", "mix the fair momentum with the mean update"),
        ),
        "[In pictures](fair-fate.md). `momentum` and `growth` are there for the 3 × 3"
        " [ablation grid](strategies.md#the-ablation-grid). [Known weaknesses](strategies.md#known-weaknesses-of-fair-fate)."
        " The [guard](strategies.md#the-guard) is ours.",
    ),
    "fair_best": Method(
        "F3's FairBest",
        "Kanaparthy, Padala, Damle, Sarvadevabhatla, Gujar: F3: Fair and Federated Face Attribute Classification with"
        " Heterogeneous Data, PAKDD 2023; arXiv 2109.02351",
        (
            ("D_k = max over rates of |rate_0 − rate_1|", "how far groups are apart on the validation rows"),
            (
                "θ ← θ_k of the least D_k",
                "the fairest client's model replaces all; ties go to the more accurate",
            ),
        ),
        "`eqo` compares TPR and FPR, `eo` TPR, `sp` selection rates. `against=overall`: how far the worst group's error rate"
        " is above everybody's, as in the paper. Clients below `min_mcc` are excluded, since a model that gives everybody one"
        " answer has D = 0 (ours; −1 for the paper's rule).",
    ),
    "fair_avg": Method(
        "F3's FairAvg",
        "Kanaparthy et al. 2023, as above",
        (
            ("S = the ⌈α K⌉ clients with the least D_k", "D as in `fair_best`; K clients in the round"),
            ("θ ← Σ_{k ∈ S} n_k θ_k / Σ_{k ∈ S} n_k", "their mean, by rows"),
        ),
        "`weights=equal`: a plain mean, as in the authors' code.",
    ),
    "fair_acc_avg": Method(
        "F3's FairAccAvg",
        "Kanaparthy et al. 2023, as above",
        (
            ("S = the ⌈α K⌉ clients with the largest accuracy_k / D_k", "accuracy counts too"),
            ("θ ← Σ_{k ∈ S} n_k θ_k / Σ_{k ∈ S} n_k", "as in `fair_avg`"),
        ),
    ),
    "server_step": Method(
        "A step at the server",
        "this project, 2026, after EquFL (arXiv 2601.05352), which generates rows where this uses the server's own",
        (
            ("θ ← θ + α_N", "average as usual"),
            (
                "g = ∇ Σ_s (q_s − q)^2 at the new θ",
                "on the validation rows; q_s is the mean p of group s, q that of all: over all rows (`sp`), those of"
                " label 1 (`eo`) or of each label (`eqo`)",
            ),
            ("θ ← θ − ρ ‖α_N‖ g / ‖g‖", "unless F(θ) ≥ `target`"),
        ),
    ),
    "fairfed": Method(
        "FairFed",
        "Ezzeldin, Yan, He, Ferrara, Avestimehr: FairFed: Enabling Group Fairness in Federated Learning, AAAI 2023,"
        " arXiv 2110.00857",
        (
            (
                "g_k = |F_k − F_all|",
                "signed differences between groups of the received model, on the client's own rows"
                " and on all; accuracies where one is undefined",
            ),
            (
                "w_k ← max(w_k − β (g_k − mean g), 0)",
                "clients whose fairness is near everybody's gain weight; at first w_k = n_k / n",
            ),
            ("θ ← θ + Σ_k w_k Δ_k / Σ_k w_k", "average by these weights"),
        ),
        "`variant=exp`: weights n_k · exp(−β g_k), without memory. Clients reweigh their own losses as in `fedavg_lr`;"
        " `local=none`: not.",
    ),
    "prejudice": Method(
        "Federated prejudice remover",
        "Abay et al. 2020, after Kamishima, Akaho, Asoh, Sakuma: Fairness-Aware Classifier with Prejudice Remover"
        " Regularizer, ECML PKDD 2012",
        (
            (
                "loss_k = mean of BCE + η · I(ŷ; s)",
                "a penalty on the mutual information of prediction and group",
            ),
            (
                "∂I/∂p = logit q_s − logit r",
                "its slope for a row of group s: q_s is the mean p of the group, r that of all",
            ),
        ),
        "`scope` says whose rows q and r are means over: each `batch`, the `client`'s rows (again before every epoch), or all"
        " clients of the round before (`global`). With a large η, models tend to give everybody one answer.",
    ),
    "ffalm": Method(
        "FFALM",
        "Dunda, Song: Fairness-aware Federated Minimax Optimization with Convergence Guarantee, arXiv 2307.04417, 2023",
        (
            (
                "d_k = L_0 − L_1",
                "mean losses of the two groups on the client's rows, again before every epoch",
            ),
            (
                "loss_k = mean of BCE + λ d_k + (b/2) d_k^2",
                "an augmented Lagrangian; a row's weight is kept within 0 and 10",
            ),
            (
                "λ ← λ + r Σ_k (n_k/n) d_k",
                "the server moves the multiplier; a client without one of the groups adds 0",
            ),
            (
                "b ← min(g b, 100),  r ← r / g",
                "the penalty grows and the step shrinks by `growth` g each round",
            ),
        ),
        "`beta` and `rate` are b and r at the start. Two groups only. `labels=favourable` compares losses of rows with the"
        " favourable label.",
    ),
    "fairgrad": Method(
        "Fed-FairGrad",
        "Maheshwari, Perrot: FairGrad: Fairness Aware Gradient Descent, TMLR 2023, arXiv 2206.10923",
        (
            (
                "f = c + C · err",
                "how much better off each (group, label) is, from error rates on the clients' rows",
            ),
            (
                "u ← max(0, u + η (f − ε)),  l ← max(0, l − η (f + ε))",
                "multipliers follow it; η is `rate`, ε is `epsilon`",
            ),
            ("w = (P + (u − l)^T C) / P", "loss weights: P are shares of (group, label); at least `floor`"),
        ),
        "C and c depend on the metric, which is `sp`, `eo` or `eqo` alone. A weight below 0 raises a row's loss.",
    ),
    "fedfact": Method(
        "FedFACT, in-processing, global part",
        "Zhang, Han, Feng, Zhang, Li, Chen: FedFACT: A Provable Framework for Controllable Group-Fairness Calibration in"
        " Federated Learning, NeurIPS 2025, arXiv 2506.03777",
        (
            (
                "D(a, j) = P(ŷ = j | a) − P(ŷ = j)",
                "with `sp`; with `eo` of prediction 1 and label 1, with `eqo` of both predictions for each label",
            ),
            (
                "λ⁺ ← Π(λ⁺ + η (D − ε)),  λ⁻ ← Π(λ⁻ + η (−D − ε))",
                "multipliers follow it; Π keeps them ≥ 0 and their sum at most `bound`; η is `rate`, ε is `epsilon`",
            ),
            (
                "M_a[y, j] = 1[y = j] − (Λ(a, j) / P(a) − Σ_b Λ(b, j)) + κ,  Λ = λ⁺ − λ⁻",
                "with `eo` and `eqo` P(a, y) in place of P(a), and the sum divided by P(y)",
            ),
            ("loss of a row = −Σ_j M_a[y, j] log P(j)", "κ is one number: it keeps all of M above 0"),
        ),
        "One model that does not read the group: the paper's local constraints and its second model for each client are left out. P(1) is"
        " trained for the decision at 0.5, and is not the chance of label 1.",
    ),
    "fedfb": Method(
        "FedFB",
        "Zeng, Chen, Lee: Improving Fairness via Federated Learning, arXiv 2110.15545, 2021",
        (
            ("w(z, 0) = u_z,  w(z, 1) = 2 − u_z", "with `sp`; u starts at 1"),
            (
                "u_z ← u_z + (α/√t) (n/m_z) f_z,  kept within 0 and 2",
                "m_z rows of group z; f_z a difference of selection rates from losses to the first group",
            ),
            (
                "λ_y ← λ_y + α d_y / ‖d‖",
                "with `eo`, `eqo`: the share of (group 1, label y); d are differences of mean losses",
            ),
        ),
        "`surrogate=error`: f from predictions, then it is the difference itself. `gaps=sums`: sums in place of means, as a public"
        " implementation has it. Two groups with `eo` and `eqo`.",
    ),
    "fairbatch": Method(
        "FairBatch, federated",
        "Roh, Lee, Whang, Suh: FairBatch: Batch Selection for Model Fairness, ICLR 2021, arXiv 2012.01696",
        (
            ("w(s, y) = π(s, y) / P(s, y)", "shares of (group, label) as loss weights; at first all 1"),
            ("π(s, y) ← π(s, y) ± α", "the group with the larger mean loss gains, the other loses"),
        ),
        "With `eo` label 1 moves, with `eqo` the label with the larger gap, with `sp` labels within groups. Two groups.",
    ),
    "fedgft": Method(
        "FedGFT",
        "Wang, Payani, Lee, Kompella: Mitigating Group Bias in Federated Learning: Beyond Local Fairness, TMLR 2024,"
        " arXiv 2305.09931",
        (
            ("F = q_0 − q_1", "the groups' mean p over all clients of the round before; 0 in round 1"),
            (
                "loss_k = mean of BCE + γ F κ p",
                "κ = 1/P(s) for one group and −1/P(s) for the other; with `eo`, `eqo` by label",
            ),
        ),
        "Local gradients add up to that of γ F²/2. `penalty=absolute`: the sign of F. The paper's γ of 20 goes with one local epoch of small steps; with many, F overshoots."
        " Two groups.",
    ),
    "fedminmax": Method(
        "FedMinMax",
        "Papadaki, Martinez, Bertran, Sapiro, Rodrigues: Minimax Demographic Group Fairness in Federated Learning, FAccT 2022,"
        " arXiv 2201.08304",
        (
            ("w(g) = μ_g / ρ_g", "ρ are the groups' shares of the rows; μ starts there"),
            ("μ ← project(μ + η r)", "r are the groups' mean losses; onto shares that sum to 1"),
        ),
        "`risks=cells`: groups by label too. The paper releases the mean of all models: `+average:share=1`.",
    ),
    "dual_reweighing": Method(
        "Dual reweighing",
        "this project, 2026",
        (
            ("w(g, 0) = e^μ,  w(g, 1) = e^{−μ}", "multipliers μ_gy, within ±3, at first 0"),
            (
                "μ_gy ← μ_gy + η (r_gy − mean over groups)",
                "r are the groups' rates over the round's rows: selection rates (`sp`), among label 1 (`eo`), among each label (`eqo`)",
            ),
            (
                "μ ← 0.9 μ while B − 1/2 < `keep` · best so far",
                "the guard: balanced accuracy B, a running mean, must keep its skill",
            ),
        ),
    ),
    "qffl": Method(
        "q-FFL",
        "Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020, arXiv 1905.10497",
        (
            ("g_k = −Δ_k / η", "η is the clients' learning rate, L_k the loss of the model that was sent"),
            (
                "h_k = q L_k^{q−1} ‖g_k‖^2 + L_k^q / η",
                "an upper bound on the curvature of a client's objective",
            ),
            (
                "θ ← θ − Σ_k L_k^q g_k / Σ_k h_k",
                "clients with a larger loss count for more; q = 0 is the plain mean",
            ),
        ),
        "Fair to clients; it does not look at groups.",
    ),
    "afl": Method(
        "Agnostic federated learning",
        "Mohri, Sivek, Suresh: Agnostic Federated Learning, ICML 2019, arXiv 1902.00146",
        (
            ("θ ← θ + Σ_k λ_k Δ_k / Σ_k λ_k", "weights start at n_k/n (`start=equal`: all equal)"),
            ("λ ← project(λ + η L)", "clients with a larger loss gain; among the round's clients"),
        ),
        "Fair to clients. The paper releases the mean of all models: `+average:share=1`.",
    ),
}

STEP_METHODS = {
    "clip": Method(
        "Norm clipping",
        "Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, arXiv 1911.07963, 2019",
        (
            ("C = median of ‖Δ_k‖ over the clients of the round", "or `norm`, where it is not 0"),
            ("Δ_k ← Δ_k min(1, C / ‖Δ_k‖)", "no update is longer; θ + Δ_k is what is scored"),
        ),
        "It limits what one client can do in a round, and does not say which client is at fault.",
    ),
    "median": Method(
        "Median",
        "Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML"
        " 2018, arXiv 1803.01498",
        (
            (
                "α = median of Δ_k, parameter by parameter",
                "over clients with a weight, each counting alike; of an even number, the mean of the middle two",
            ),
        ),
        "It replaces every mean of updates in the strategy.",
    ),
    "trimmed": Method(
        "Trimmed mean",
        "Yin et al. 2018, as above",
        (
            (
                "α = mean of Δ_k without the ⌊`share` K⌋ largest and smallest, parameter by parameter",
                "over the K clients with a weight, each counting alike",
            ),
        ),
    ),
    "krum": Method(
        "Krum and Multi-Krum",
        "Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,"
        " NeurIPS 2017, arXiv 1703.02757",
        (
            (
                "s_k = Σ ‖Δ_k − Δ_j‖^2 over the max(1, K − f − 2) nearest others j",
                "f is `attackers`, K the number of clients with a weight",
            ),
            ("α = mean of Δ_k of the `keep` least s_k", "ties go to the earlier client"),
        ),
        "Its guarantee needs K ≥ 2f + 3; with fewer clients it is still defined.",
    ),
    "average": Method(
        "Average",
        "Polyak, Juditsky: Acceleration of Stochastic Approximation by Averaging, SIAM Journal on Control and"
        " Optimization 30, 1992; Ruppert 1988",
        (("released = mean of θ over the last `share` of the rounds", "training continues from θ itself"),),
        "Clients do nothing more. It recovers much of the accuracy that FedAvg loses where clients differ ([measured](choosing.md)).",
    ),
    "thresholds": Method(
        "Thresholds",
        "after Hardt, Price, Srebro: Equality of Opportunity in Supervised Learning, NeurIPS 2016; without random decisions",
        (
            ("ŷ = 1 where logit p > c_s", "one threshold for each group"),
            ("c = argmax F", "the fairest of some hundred for each group,"),
            ("accuracy ≥ accuracy_0 − `tolerance`", "of those that nearly keep the model's own accuracy"),
            (
                "B ≥ 1/2 + `keep` (B_0 − 1/2)",
                "and most of its balanced accuracy B above one half, so that it does not collapse",
            ),
        ),
        "Decisions then need each person's group. `from=clients`: from histograms of scores by group and label that each"
        " client sends once, after training. With `bound` see [bounds](strategies.md#bounds).",
    ),
    "common_threshold": Method(
        "One threshold for everybody",
        "one threshold for all groups: Corbett-Davies, Pierson, Feller, Goel, Huq: Algorithmic Decision Making and the Cost"
        " of Fairness, KDD 2017; its choice from clients' sums under a guard: ours",
        (
            ("ŷ = 1 where logit p > c", "for everybody"),
            (
                "d + `margin` sqrt((m − d^2) / N) ≤ `tolerance`",
                "d: the accuracy given up; m: the share of rows decided otherwise; N: all rows",
            ),
            ("B ≥ 1/2 + `keep` (B_0 − 1/2)", "balanced accuracy is kept"),
            ("c = argmax F", "the fairest of 257; of those within 0.01 of it, the most accurate"),
        ),
        "No group is needed at decisions. Clients send the histogram that `+thresholds:from=clients` asks for. Under"
        " differential privacy v / N^2 is added under the root, where v is the variance of the noise in the counts between the"
        " plain threshold and c.",
    ),
    "tilt": Method(
        "The tilted score: one rule for everybody",
        "form: Menon, Williamson: The Cost of Fairness in Binary Classification, FAT* 2018; Chen, Klochkov, Liu, arXiv"
        " 2310.05725. From clients' sums, with the guard and the table: ours",
        (
            (
                "e = P(y = 1 | x), g = P(s = 1 | x)",
                "the released model, and a second one trained by as many rounds of `fedavg+average` on the group",
            ),
            ("r = e + a g", "for `sp`"),
            ("r = e (1 + a g)", "for `eo`"),
            ("r = e (1 + a_1 g) + (1 − e) a_0 g", "for `eqo` and every other objective"),
            ("ŷ = 1 where r ≥ t", "for everybody, by the ranges (1/`bins` wide) that e and g are in"),
            (
                "a, t = argmax F",
                "under the guard of `+common_threshold`, from one joint histogram of e and g that clients send",
            ),
        ),
        "No group is needed at decisions, and none may be an input (`--drop`). The second model guesses a protected attribute:"
        " [what that means](fairness.md#one-rule-for-everybody). With more groups there is a model"
        " g_s for each group but the first, a g becomes Σ_s a_s g_s (and a_0 g likewise), and no joint histogram is sent: the"
        " server asks clients for histograms of r at given prices, along a path that raises the prices of groups with lower"
        " rates, then by moving one price at a time. `distil=true` trains a fresh network by as"
        " many rounds again on ŷ in place of y, and releases it with one threshold c, chosen as that of"
        " `+common_threshold`; d, m and B_0 are still measured against the released model before, which stays where no c"
        " may be taken.",
    ),
}


def page() -> str:
    """The whole page; KeyError for a strategy that nobody has described."""
    ours = [entry for entry in entries() if entry.build.__module__.startswith("fairfate.")]
    order = [*(name for name in METHODS), *(entry.name for entry in ours if entry.name not in METHODS)]
    ours.sort(key=lambda entry: order.index(entry.name))
    parts = [re.sub(r"\{([^{}]+)\}", lambda m: math(m[1]), HEAD)]
    parts += [_section(entry.name, METHODS[entry.name], entry.settings, _needs(entry)) for entry in ours]
    parts += [_section(name, STEP_METHODS[name], step.settings, "", "+") for name, step in STEPS.items()]
    return "\n".join(parts)


def _section(name: str, method: Method, settings: Mapping[str, Setting], needs: str, sign: str = "") -> str:
    rules = "".join(f"- {math(rule)}<br>{math(words)}\n" for rule, words in method.rules)
    parts = [f"## {sign}{name}\n", f"**{method.title}.** {_short(method.reference)}.\n"]
    parts += [rules]
    parts += [f"{method.more}\n"] if method.more else []
    parts += [f"Needs: {needs}.\n"] if needs else []
    if settings:
        parts += ["Hyperparameters:\n", "".join(starmap(_hyperparameter, settings.items()))]
    return "\n".join(parts)


def _hyperparameter(key: str, setting: Setting) -> str:
    if isinstance(setting, ObjectiveSetting) and setting.default is None:
        return f"- `{key}`\n"
    return f"- `{key}` = {_default(setting)}, {_rule(setting)}: {setting.help}\n"


def _short(reference: str) -> str:
    """A reference that names the first of three authors or more.

    >>> _short("Liu, Chen, Zhang: Accelerating, TPDS 2020; Hardt, Price: Equality")
    'Liu et al.: Accelerating, TPDS 2020; Hardt, Price: Equality'
    """
    return re.sub(r"([A-Z][^\s,:;]+)(?:, [^,:;]+){2,}(?=:)", r"\1 et al.", reference)


def _needs(entry: Entry) -> str:
    result = parse_spec(entry.name, "eqo").build(Setup(num_rounds=10, learning_rate=0.1)).needs
    return "; ".join(words for need, words in NEEDS.items() if need in result)


def _default(setting: Setting) -> str:
    return "the run's `--metric`" if setting.default is None else f"`{plain(setting.default)}`"


def _rule(setting: Setting) -> str:
    if isinstance(setting, ObjectiveSetting):
        return "an [objective](strategies.md#objectives-what-fair-means-to-a-strategy)"
    *others, last = setting.rule.removeprefix("one of ").split("|")
    return f"{', '.join(others)} or {last}" if others else last


def math(text: str) -> str:
    """Subscripts and powers as HTML, which is read in a browser and on code hosts alike.

    >>> math("θ ← θ + Σ_{k ∈ S} F_k^2")
    'θ ← θ + Σ<sub>k ∈ S</sub> F<sub>k</sub><sup>2</sup>'
    """
    parts = re.split(r"(`[^`]*`)", text)
    for index in range(0, len(parts), 2):
        part = parts[index]
        part = re.sub(r"_(?:\{([^{}]+)\}|(\w+))", lambda m: f"<sub>{m[1] or m[2]}</sub>", part)
        parts[index] = re.sub(r"\^(?:\{([^{}]+)\}|(\w+))", lambda m: f"<sup>{m[1] or m[2]}</sup>", part)
    return "".join(parts)
