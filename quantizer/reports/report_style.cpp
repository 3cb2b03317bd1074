// report_style.cpp: see report_style.h. Text has a contrast of at least 4.5 to 1 on its ground, marks of 3 to 1.
#include "quantizer/reports/report_style.h"

namespace thimble {

const char* const kReportStyle = R"(
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2028;--soft:#59616d;--line:#dfe3e8;--bar:#7fb0dc;
--track:#e8ecf1;--shade:rgba(20,28,40,.16);--note:#fff7e0;--note-line:#d9a400;--c0:#1f66ad;--c1:#b8500f;--c2:#1d7d5a;--c3:#7c4aa5;--c4:#a3324f;
--c5:#5d6470}
@media (prefers-color-scheme:dark){:root{--page:#14171c;--card:#1c2027;--ink:#e6e9ee;--soft:#a3acb9;--line:#323843;
--bar:#3f78ae;--track:#2a303a;--shade:rgba(0,0,0,.55);--note:#2c2614;--note-line:#c79a1e;--c0:#6cb0ee;--c1:#f0985b;--c2:#5cc79a;--c3:#bd93e0;
--c4:#ec7d97;--c5:#a6adb8}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 24px 24px}
header p,footer{color:var(--soft)}
header p{margin:0;overflow-wrap:anywhere}
.command{font-size:14px;letter-spacing:.02em}
h1{font-size:30px;line-height:1.2;margin:4px 0 6px;overflow-wrap:anywhere}
h2{font-size:20px;line-height:1.3;margin:0 0 8px}
h3{font-size:16px;margin:20px 0 4px}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:22px 24px;margin-top:20px}
.how{color:var(--soft);font-size:15px;margin:0 0 14px;max-width:70ch}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:16px;margin:22px 0 0}
.figures div{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px;min-width:0}
dt{color:var(--soft);font-size:14px}
dd{margin:0;overflow-wrap:anywhere}
.value{font-size:25px;font-weight:600;line-height:1.3;font-variant-numeric:tabular-nums}
.detail{color:var(--soft);font-size:14px}
.track{display:block;height:6px;border-radius:3px;background:var(--track);overflow:hidden}
.track span{display:block;height:100%;background:var(--bar);border-radius:3px}
.figures .track{margin-top:10px}
td .track{height:4px;margin:3px 0 0;min-width:56px}
.notes{margin:16px 0 0;padding:12px 16px 12px 34px;background:var(--note);border-left:4px solid var(--note-line);
border-radius:6px;overflow-wrap:anywhere}
figure{margin:12px 0 0}
figcaption{font-weight:600;font-size:15px}
.charts{display:grid;gap:24px}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:6px 0 8px;padding:0;font-size:14px}
.legend li{display:flex;align-items:center;gap:8px;min-width:0;overflow-wrap:anywhere}
.legend svg{flex:none}
.chart{display:block;width:100%;height:auto}
.narrow{display:none}
.chart text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
.grid{stroke:var(--line)}
.axis{stroke:var(--soft)}
.rule{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:5 4}
.curve{fill:none;stroke-width:2}
.bar{fill:none;stroke-width:1.5}
.mark{stroke-width:1.5;vector-effect:non-scaling-stroke}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--c4)}
.s5{stroke:var(--c5)}
.s0 .mark{fill:var(--c0)}.s1 .mark{fill:var(--c1)}.s2 .mark{fill:var(--c2)}.s3 .mark{fill:var(--c3)}
.s4 .mark{fill:var(--c4)}.s5 .mark{fill:var(--c5)}
.reference .curve{stroke-dasharray:2 4}
.reference .mark{fill:var(--card)}
.scroll{overflow-x:auto;max-width:100%;background:linear-gradient(90deg,var(--card) 30%,transparent) 0 0/40px 100%
no-repeat local,linear-gradient(270deg,var(--card) 30%,transparent) 100% 0/40px 100% no-repeat local,
linear-gradient(90deg,var(--shade),transparent) 0 0/12px 100% no-repeat scroll,
linear-gradient(270deg,var(--shade),transparent) 100% 0/12px 100% no-repeat scroll}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;font-size:15px;padding:0 0 6px}
th,td{text-align:left;padding:6px 16px 6px 0;border-bottom:1px solid var(--line);vertical-align:top;font-weight:400}
thead th{color:var(--soft);font-size:13px;vertical-align:bottom}
thead .n{white-space:normal}
tbody th{overflow-wrap:anywhere;min-width:120px}
th:last-child,td:last-child{padding-right:0}
.n{text-align:right;white-space:nowrap}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:28px}
.two div{min-width:0}
.two + .two{margin-top:28px}
.settings td{overflow-wrap:anywhere}
details{margin-top:18px}
summary{cursor:pointer;font-weight:600;font-size:15px;padding:4px 0}
footer{font-size:14px;padding:20px 0 0}
.kinds{align-self:start}
@media (max-width:960px){.figures{grid-template-columns:1fr 1fr}}
@media (max-width:760px){
.wide{display:none}
.narrow{display:block;max-width:520px}
}
@media (max-width:640px){
main{padding:20px 14px}
h1{font-size:24px}
section{padding:16px 14px}
.figures{grid-template-columns:1fr;gap:10px}
th,td{padding-right:10px}
tbody th{min-width:88px}
td .track{min-width:40px}
}
@media print{body{background:#fff}section,.figures div{break-inside:avoid}}
)";

}  // namespace thimble
