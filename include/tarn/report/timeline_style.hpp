// SPDX-License-Identifier: Apache-2.0
#pragma once
// Style sheet of the page: light and dark by system setting or choice, one type scale, the keyboard focus always visible.

namespace tarn::detail {

/// The dark colours: used if the system is dark and light is not chosen, or if dark is chosen.
inline constexpr char html_dark[] = R"css(
  color-scheme: dark;
  --page: #101214; --surface: #191c20; --ink: #eceff2; --soft: #a2abb5; --line: #2a2f35; --edge: #363c43;
  --hover: #23282d; --focus: #7db1ff; --chosen: #eceff2; --on-chosen: #15191e;
  --live: #6aa9f5; --live-fill: #2c5c99; --live-faint: #213d5f; --reserved: #a2abb5; --requested: #f09a4d;
  --cached: #2b3036; --awaiting: #f0a53a;
  --c0: #4a93ea; --c1: #22b48a; --c2: #e0a424; --c3: #9c7be8; --c4: #ec6a7e; --c5: #2ba5b5; --c6: #e88f4a;
  --c7: #d67fbf;
  --other: #737c86;
  --s0: #1e3a5f; --s1: #26507f; --s2: #2f69a8; --s3: #4285ce; --s4: #66a3e8; --s5: #97c3f5; --s6: #cfe3fc;
)css";

inline constexpr char html_style[] = R"css(
:root {
  color-scheme: light;
  --page: #f4f5f6; --surface: #ffffff; --ink: #15191e; --soft: #59626d; --line: #e3e6e9; --edge: #d5d9de;
  --hover: #eef1f4; --focus: #1d5fd1; --chosen: #15191e; --on-chosen: #ffffff;
  --live: #2468c4; --live-fill: #9cc0ee; --live-faint: #d3e3f8; --reserved: #59626d; --requested: #b4540a;
  --cached: #e4e8ec; --awaiting: #d97706;
  --c0: #2a78d6; --c1: #12a37a; --c2: #e59f00; --c3: #6a3fb5; --c4: #d9485f; --c5: #0f7d8c; --c6: #d9772b;
  --c7: #c05fa8;
  --other: #9aa3ad;
  --s0: #cfe2fa; --s1: #a9cbf5; --s2: #7fb1ee; --s3: #5494e2; --s4: #2f76d0; --s5: #1c58a8; --s6: #123b75;
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  -webkit-text-size-adjust: 100%;
}
#main { max-width: 1280px; margin: 0 auto; padding: 28px 24px 56px; }
h1, h2, h3, p, dl, dd, ul { margin: 0; padding: 0; }
h1 { font-size: 26px; line-height: 1.2; font-weight: 650; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; font-weight: 650; }
h3 { font-size: 15px; font-weight: 650; }
.soft { color: var(--soft); }
.mark { color: var(--soft); font-size: 12px; letter-spacing: 0.06em; margin-bottom: 4px; }
.hidden {
  position: absolute; width: 1px; height: 1px; margin: -1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap;
}
[hidden] { display: none !important; }
.skip { position: absolute; left: -9999px; top: 8px; padding: 8px 12px; background: var(--surface);
  color: var(--ink); z-index: 1; }
.skip:focus { left: 8px; }
:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; }

header { display: flex; flex-wrap: wrap; gap: 16px; justify-content: space-between; align-items: flex-start;
  margin-bottom: 20px; }
header > div:first-child { min-width: 0; flex: 1 1 320px; }
.card { background: var(--surface); border: 1px solid var(--edge); border-radius: 10px; padding: 20px;
  margin-top: 16px; }
.bar { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; }
.bar > h2 { flex: 1 1 auto; }
.bar > h3 { flex: none; }
.tools { display: flex; flex-wrap: wrap; gap: 8px; }

button, input {
  font: inherit; font-size: 13px; color: var(--ink); background: var(--surface); border: 1px solid var(--edge);
  border-radius: 6px; padding: 4px 11px; min-height: 30px;
}
button { cursor: pointer; }
button:hover:not(:disabled) { background: var(--hover); }
button:disabled { color: var(--soft); opacity: 0.55; cursor: default; }
button[aria-pressed=true], [role=tab][aria-selected=true] { background: var(--chosen); color: var(--on-chosen);
  border-color: var(--chosen); }
button[aria-pressed=true]:hover:not(:disabled) { background: var(--chosen); }
.group { display: inline-flex; }
.group button { border-radius: 0; margin-left: -1px; }
.group button:focus-visible { z-index: 1; position: relative; }
.group button:first-child { border-radius: 6px 0 0 6px; margin-left: 0; }
.group button:last-child { border-radius: 0 6px 6px 0; }
.group button:only-child, .group button[hidden] + button { border-radius: 6px; }
.tabs { display: flex; flex-wrap: wrap; gap: 6px; }
@media (prefers-reduced-motion: no-preference) { button { transition: background-color 0.12s; } }

#tiles { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 12px; }
@media (max-width: 1060px) { #tiles { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
#tiles > div { background: var(--surface); border: 1px solid var(--edge); border-radius: 10px; padding: 14px 16px;
  min-width: 0; }
#tiles dt { color: var(--soft); font-size: 13px; }
#tiles .value { font-size: 24px; line-height: 1.3; font-weight: 650; font-variant-numeric: tabular-nums;
  letter-spacing: -0.01em; }
#tiles .soft { font-size: 12.5px; overflow-wrap: anywhere; }

.readout { display: flex; flex-wrap: wrap; gap: 2px 18px; min-height: 42px; align-content: center; margin-top: 8px;
  font-variant-numeric: tabular-nums; font-size: 13px; }
.readout .name { color: var(--soft); }
.pair { overflow-wrap: anywhere; }
canvas { display: block; width: 100%; border-radius: 4px; }
#chart { height: 340px; cursor: crosshair; touch-action: pan-y; }
#overview { height: 40px; margin-top: 4px; cursor: grab; touch-action: none; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; margin-top: 12px; font-size: 13px; }
.legend li { display: inline-flex; align-items: center; overflow-wrap: anywhere; }
.key { display: inline-block; flex: none; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px; }
.key.dash { height: 3px; width: 14px; border-radius: 2px; }
.keys { font-size: 12.5px; margin-top: 8px; }
kbd { font: inherit; font-size: 11.5px; border: 1px solid var(--edge); border-radius: 4px; padding: 0 5px;
  background: var(--page); }
#chart-note:not(:empty) { margin-top: 8px; }

#moment { border-top: 1px solid var(--line); margin-top: 18px; padding-top: 16px; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 16px 32px;
  margin-top: 10px; }
.columns > div { min-width: 0; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
caption { text-align: left; color: var(--soft); font-size: 12.5px; padding-bottom: 4px; }
th, td { text-align: left; font-weight: 400; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line);
  vertical-align: baseline; }
th:last-child, td:last-child { padding-right: 0; }
tr:last-child > * { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
/* The name takes what the numbers leave. */
.plain tbody th { width: 100%; max-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.plain td.share { color: var(--soft); }
.rest > * { color: var(--soft); }

#map-scroll { overflow-y: auto; overflow-x: hidden; position: relative; margin-top: 4px; }
#map-space { position: relative; }
#map { position: sticky; top: 0; cursor: crosshair; }
#map:focus-visible, #chart:focus-visible { outline-offset: -2px; }

[role=tabpanel] { margin-top: 14px; }
[role=tabpanel] > .bar { margin-bottom: 8px; }
input[type=search] { width: min(100%, 260px); }
input::placeholder { color: var(--soft); opacity: 1; }
.scroll { overflow: auto; max-height: 560px; }
.scroll table { min-width: 560px; }
.scroll thead th { position: sticky; top: 0; background: var(--surface); border-bottom: 0;
  box-shadow: inset 0 -1px var(--edge); }
.scroll tbody th, .scroll tbody td { max-width: 420px; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
.sort { display: inline-flex; align-items: baseline; border: 0; background: none; padding: 2px 0; min-height: 24px;
  color: var(--soft); font-size: 13px; white-space: nowrap; }
.sort:hover:not(:disabled) { background: none; color: var(--ink); }
[aria-sort] .sort { color: var(--ink); font-weight: 650; }
.arrow { display: inline-block; width: 1em; text-align: center; }
th.number .arrow { order: -1; }
[aria-sort=descending] .arrow::after { content: "↓"; }
[aria-sort=ascending] .arrow::after { content: "↑"; }
[role=tabpanel] > button { margin-top: 12px; }

@media (max-width: 640px) {
  #main { padding: 18px 12px 40px; }
  .card { padding: 14px 12px; border-radius: 8px; }
  #tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
  #tiles > div { padding: 10px 12px; }
  #tiles .value { font-size: 20px; }
  h1 { font-size: 22px; }
  #chart { height: 260px; }
  .readout { min-height: 64px; }
}
)css";

}  // namespace tarn::detail
