#!/usr/bin/env bash
# Build the parts of Observable Plot that the report draws with, as one file that needs no network.
# Run it by hand when the version or the list of marks changes, then put the new checksum into
# tests/integration/browser/test_report_page.py.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" @observablehq/plot@0.6.17 esbuild@0.25.12
cat >"$work/entry.js" <<'JS'
export {plot, line, lineY, areaY, dot, ruleX, ruleY, link, barX, cell, text, tip, pointer, pointerX, axisX, axisY} from "@observablehq/plot";
JS
"$work/node_modules/.bin/esbuild" "$work/entry.js" --bundle --minify --format=iife --global-name=Plot \
  --legal-comments=none --target=es2020 --outfile=src/fairfate/report/html/plot.min.js
{ echo "plot.min.js is built by tools/vendor.sh from Observable Plot 0.6.17 and the parts of d3 it needs."
  for name in @observablehq/plot d3 isoformat interval-tree-1d binary-search-bounds; do
    for file in LICENSE LICENSE.md; do
      [ -f "$work/node_modules/$name/$file" ] && { printf '\n--- %s\n\n' "$name"; cat "$work/node_modules/$name/$file"; }
    done
  done; true; } >src/fairfate/report/html/plot.LICENSE
sha256sum src/fairfate/report/html/plot.min.js
