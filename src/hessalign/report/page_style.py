"""The style of a page: readable on a phone and on a desk, in light and in dark."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --card: #f5f6f8; --ink: #1c2330; --soft: #5a6472; --line: #d9dde3;
  --heat: #1f5fae; --on: #ffffff; --one: #1f5fae; --two: #d97706; --three: #b6bdc8;
  --good: #17703c; --bad: #a33a1d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161d; --card: #1b212b; --ink: #e8ecf2; --soft: #a3adbb; --line: #333c4a;
    --heat: #6ea8ff; --on: #0c1017; --one: #6ea8ff; --two: #f5a94a; --three: #5b6675;
    --good: #6fd39a; --bad: #f39a7e;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: anywhere;
}
main { max-width: 1040px; margin: 0 auto; padding: 24px 20px 64px; }
header p, .how, figcaption { color: var(--soft); }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 48px 0 8px; }
h3 { font-size: 1rem; margin: 20px 0 6px; }
p { margin: 8px 0; max-width: 46rem; }
.how { font-size: 0.85rem; line-height: 1.5; border-left: 3px solid var(--line);
  padding-left: 12px; margin: 14px 0 0; max-width: 56rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 20px 0; padding: 0; list-style: none; }
.cards li { background: var(--card); border-radius: 10px; padding: 12px 14px; }
.cards b { display: block; font-size: 1.45rem; line-height: 1.25; font-weight: 650; }
.cards b.long { font-size: 1rem; line-height: 1.4; }
.cards span { color: var(--soft); font-size: 0.85rem; line-height: 1.35; display: block; }
.reading { background: var(--card); border-radius: 12px; padding: 6px 20px 14px; }
.reading ul { margin: 8px 0; padding-left: 20px; }
.reading li { margin: 6px 0; }
.fixes { display: grid; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); gap: 0 32px; }
.can { color: var(--good); }
.cannot { color: var(--bad); }
.note { border: 1px solid var(--line); border-radius: 10px; padding: 4px 16px; margin: 16px 0;
  font-size: 0.92rem; }
.note ul { padding-left: 18px; margin: 8px 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr));
  gap: 8px 32px; align-items: start; }
figure { margin: 12px 0; min-width: 0; }
figcaption { font-size: 0.9rem; margin-bottom: 4px; }
.draw { overflow-x: auto; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .value { font-variant-numeric: tabular-nums; }
svg .heat { fill: var(--heat); }
svg .on { fill: var(--on); }
svg .part0, svg .dot1 { fill: var(--one); }
svg .part1, svg .dot0 { fill: var(--two); }
svg .part2 { fill: var(--three); }
svg .dot2 { fill: none; stroke: var(--soft); stroke-width: 1.5; }
svg .grid { stroke: var(--line); }
svg .join { stroke: var(--three); stroke-width: 3; }
svg .axis { fill: none; stroke: var(--soft); }
.key { display: inline-block; width: 0.75em; height: 0.75em; border-radius: 2px;
  margin: 0 0.35em 0 0; }
.key.part0, .key.dot1 { background: var(--one); }
.key.part1, .key.dot0 { background: var(--two); }
.key.part2 { background: var(--three); }
.key.dot2 { border: 1.5px solid var(--soft); border-radius: 50%; }
.key.dot0, .key.dot1 { border-radius: 50%; }
.keys span { margin-right: 1.2em; white-space: nowrap; }
.table { overflow-x: auto; margin: 12px 0; border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; overflow-wrap: normal;
  font-variant-numeric: tabular-nums; }
th, td { padding: 7px 12px; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
tr:last-child td, tr:last-child th { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 600; background: var(--card); }
th[scope=row], th:first-child, .words td { text-align: left; }
th[scope=row] { font-weight: 550; min-width: 11em; max-width: 22em; white-space: normal;
  overflow-wrap: anywhere; }
.words td { white-space: normal; min-width: 12em; overflow-wrap: anywhere; }
details summary { cursor: pointer; color: var(--soft); margin: 10px 0; }
footer { color: var(--soft); font-size: 0.85rem; margin-top: 48px; padding-top: 12px;
  border-top: 1px solid var(--line); }
@media (max-width: 480px) {
  main { padding: 16px 14px 48px; }
  h1 { font-size: 1.4rem; }
  h2 { font-size: 1.15rem; margin-top: 36px; }
  .cards { grid-template-columns: 1fr 1fr; }
  .reading { padding: 4px 14px 10px; }
  svg text { font-size: 15px; }
}
@media print { .table { overflow: visible; } }
""".strip()
