// The style sheet of the page. The colours stand in palette.h, too: a test compares them.
#pragma once

#include "html_writer.h"

namespace xffl::report {

inline constexpr Markup kStyle = R"css(
:root{color-scheme:light dark;--bg:#ffffff;--fg:#1b1f24;--dim:#57606a;--line:#d0d7de;--box:#f6f8fa;
--mark:#0b5cad;--warn:#9a3412;
--c0:#cfe0f5;--c1:#a9c7ec;--c2:#83ade1;--c3:#5c92d4;--c4:#3876bf;--c5:#1f5a9e;--c6:#0b3c73;
--p0:#794000;--p1:#6a59ff;--p2:#00a46d;--p3:#2a0960;--p4:#793ead;--p5:#405370;--p6:#ff0551;--p7:#9084c3}
@media screen and (prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9aa4af;
--line:#30363d;--box:#161b22;--mark:#6cb6ff;--warn:#ffb386;
--c0:#16304f;--c1:#1f4570;--c2:#2b5c94;--c3:#3d77b8;--c4:#5d96d4;--c5:#8bb8e8;--c6:#c5ddf7;
--p0:#d29922;--p1:#3869d2;--p2:#3ecd98;--p3:#dce8f8;--p4:#99b8ff;--p5:#ae9ebb;--p6:#ff5d60;--p7:#8f4884}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif}
main{max-width:1200px;margin:0 auto;padding:12px}
h1{font-size:1.4em;margin:.2em 0;overflow-wrap:anywhere}
h2{font-size:1.15em;margin:1.6em 0 .4em;border-bottom:1px solid var(--line)}
h3{font-size:1em;margin:1em 0 .3em}
p,ul{margin:.4em 0}
li,td,code{overflow-wrap:anywhere}
.note{color:var(--dim);font-size:.9em}
.state{text-transform:uppercase}
.needs{border:2px solid var(--warn);padding:0 10px 6px;border-radius:6px}
.needs h2,.calm h2{margin:.4em 0;border:0}
.needs h2{color:var(--warn)}
.calm{border:1px solid var(--line);padding:0 10px 6px;border-radius:6px}
code{background:var(--box);padding:1px 4px;border-radius:3px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:8px;margin:12px 0}
.tile{border:1px solid var(--line);background:var(--box);border-radius:6px;padding:8px;color:inherit;
text-decoration:none;display:block}
.tile:hover{border-color:var(--mark)}
.tile .q{display:block;color:var(--mark);font-size:.85em}
.tile b{display:block;font-size:1.2em}
.tile .more{display:block;color:var(--dim);font-size:.85em}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.87em;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--dim);padding:4px 0}
th,td{border-bottom:1px solid var(--line);padding:3px 8px 3px 0;text-align:left;vertical-align:top}
td{min-width:4em}
.none{color:var(--dim)}
summary{cursor:pointer;color:var(--mark);padding:3px 0}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,220px),1fr));gap:10px}
figure{margin:0;break-inside:avoid}
figcaption{font-size:.87em;overflow-wrap:anywhere}
svg{display:block;width:100%}
svg.line{height:110px}svg.columns{height:160px}svg.bar{height:22px}
.plot{position:relative;border:1px solid var(--line);background:var(--box)}
.plot i{position:absolute;left:3px;font-size:11px;font-style:normal;color:var(--dim);
pointer-events:none}
.plot .hi{top:1px}.plot .lo{bottom:1px}
.x{display:flex;justify-content:space-between;font-size:11px;color:var(--dim)}
.x i{font-style:normal}
path{vector-effect:non-scaling-stroke;fill:none}
.s{stroke:var(--mark);stroke-width:1.5}
.back{stroke:var(--warn);stroke-width:1.5;stroke-dasharray:4 2}
.dot{stroke:var(--mark);stroke-width:7;stroke-linecap:round}
.rest{fill:var(--line)}
.range{fill:var(--mark);fill-opacity:.25}
.mark{stroke:var(--fg);stroke-width:1.5;stroke-dasharray:3 2}
.t{fill:transparent}
.bars{display:grid;grid-template-columns:minmax(0,max-content) minmax(0,1fr);gap:3px 8px;
align-items:center;margin:6px 0}
.bars .name{font-size:.87em;max-width:9em;overflow-wrap:anywhere}
.bars svg{background:var(--box)}
.legend{font-size:.87em}
.legend span{display:inline-block;margin-right:10px}
svg.key{display:inline-block;width:14px;height:11px;margin-right:4px}
.p0,.p1,.p2,.p3,.p4,.p5,.p6,.p7{stroke:var(--bg);stroke-width:1}
.p0{fill:var(--p0)}.p1{fill:var(--p1)}.p2{fill:var(--p2)}.p3{fill:var(--p3)}.p4{fill:var(--p4)}.p5{fill:var(--p5)}.p6{fill:var(--p6)}.p7{fill:var(--p7)}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}.c4{fill:var(--c4)}.c5{fill:var(--c5)}.c6{fill:var(--c6)}
@media print{.tile{break-inside:avoid}details::details-content{content-visibility:visible;
display:block;height:auto}.scroll{overflow:visible}}
)css";

}  // namespace xffl::report
