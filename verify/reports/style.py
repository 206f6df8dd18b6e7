"""The page's style. Every text colour has a contrast of 4.5 or more with its background."""

from __future__ import annotations

LIGHT = {
    "page": "#f6f7f8",
    "card": "#ffffff",
    "text": "#1b1f24",
    "quiet": "#57606a",
    "line": "#d5dae0",
    "track": "#e9ecf0",
    "link": "#0a58b8",
    "good": "#176f32",
    "bad": "#b3261e",
    "open": "#8a5300",
    "good-soft": "#e6f4ea",
    "bad-soft": "#fdeceb",
    "open-soft": "#fdf3e1",
    "s0": "#1f6feb",
    "s1": "#c2410c",
    "s2": "#15803d",
    "s3": "#7c3aed",
    "s4": "#b91c6b",
    "s5": "#0e7490",
    "s6": "#854d0e",
    "s7": "#475569",
}
DARK = {
    "page": "#0f1215",
    "card": "#171b20",
    "text": "#e6e9ed",
    "quiet": "#a3adb8",
    "line": "#323a43",
    "track": "#262d35",
    "link": "#7ab7ff",
    "good": "#5ed47d",
    "bad": "#ff8f86",
    "open": "#e8b64c",
    "good-soft": "#12291a",
    "bad-soft": "#341a19",
    "open-soft": "#2e2410",
    "s0": "#79b8ff",
    "s1": "#ffab70",
    "s2": "#7ee787",
    "s3": "#c4a7ff",
    "s4": "#ff8fc8",
    "s5": "#67d5e8",
    "s6": "#e3c567",
    "s7": "#b0bac6",
}
SERIES = tuple("s{}".format(i) for i in range(8))

_RULES = """
*,*::before,*::after{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--text);overflow-wrap:anywhere;
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
header,main,footer{max-width:72rem;margin:0 auto;padding:0 1rem}
header{padding-top:1.5rem}
a{color:var(--link);text-underline-offset:.15em}
a:focus-visible,summary:focus-visible,.wide:focus-visible{outline:3px solid var(--link);
outline-offset:2px}
h1,h2,h3,h4{line-height:1.25;margin:0}
h2{font-size:1.3rem;margin:2.5rem 0 .9rem}
h3{font-size:1.02rem}
h4{font-size:.95rem;margin:1.2rem 0 .4rem}
p{margin:.35rem 0}
code,pre,.id{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
font-size:.88em}
.quiet{color:var(--quiet)}
.banner{border:1px solid var(--line);border-left:.5rem solid var(--tone);border-radius:.5rem;
background:var(--soft);padding:1rem 1.25rem}
.banner .over{font-size:.88rem}
.banner h1{font-size:2rem;color:var(--tone)}
.fit,.pass{--tone:var(--good);--soft:var(--good-soft)}
.unfit,.fail,.error,.worse{--tone:var(--bad);--soft:var(--bad-soft)}
.no-verdict,.pass-on-cpu,.unlike{--tone:var(--open);--soft:var(--open-soft)}
.skip{--tone:var(--quiet);--soft:var(--track)}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(13rem,1fr));
gap:.9rem 1rem;margin:1.25rem 0 0;padding:0}
.facts div{min-width:0}
.facts dt{color:var(--quiet);font-size:.84rem}
.facts dd{margin:0}
nav{position:sticky;top:0;z-index:1;background:var(--page);border-bottom:1px solid var(--line);
margin-top:.9rem}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;list-style:none;max-width:72rem;margin:0 auto;
padding:.55rem 1rem}
:target,section{scroll-margin-top:3.2rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:.5rem;
padding:1rem 1.25rem;margin:0 0 1rem}
.card>h3 .quiet{font-weight:400;margin-left:.3rem}
.trouble{border-left:.3rem solid var(--tone)}
.trouble dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.3rem 1rem;
margin:.6rem 0 0}
.trouble dt{color:var(--quiet)}
.trouble dd{margin:0}
.trouble h3+.told{margin-bottom:.9rem}
.trouble p+h3{margin-top:.9rem}
.told{margin:.4rem 0 0}
.status{display:inline-block;min-width:3.4rem;padding:.05rem .5rem;border-radius:1rem;
background:var(--soft);color:var(--tone);font-size:.82rem;font-weight:600;text-align:center}
table{border-collapse:collapse;font-size:.92rem}
th,td{padding:.4rem .7rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
thead th{color:var(--quiet);font-weight:600;font-size:.84rem;vertical-align:bottom}
tbody th{font-weight:400}
tbody tr:last-child>*{border-bottom:0}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.checks{width:100%}
.checks .name{font-weight:600}
.checks .title{margin-left:.6rem}
.wide{overflow-x:auto;max-width:100%}
.wide table{overflow-wrap:normal}
.wide td,.wide th{max-width:28rem;overflow-wrap:break-word}
.parts{display:flex;flex-wrap:wrap;gap:1.5rem 2.5rem;align-items:flex-start;margin-top:.9rem}
.bars{columns:22rem 2;column-gap:2.5rem;margin-top:.9rem}
.bars figure{margin-bottom:1.5rem}
.titled{flex:0 1 auto;min-width:0;max-width:100%}
.titled h4{margin:0 0 .3rem}
figure{flex:1 1 min(100%,22rem);margin:0;min-width:0;max-width:31rem;break-inside:avoid}
figcaption{font-weight:600;font-size:.92rem;margin-bottom:.3rem}
svg{display:block}
.plot{width:100%;height:auto;font-size:13px;fill:var(--text)}
.plot .tick,.plot .axis-title{fill:var(--quiet);font-size:12px}
.plot .bar-name,.plot .bar-value{font-size:13px}
.plot .bar-value{font-variant-numeric:tabular-nums}
.plot .grid{stroke:var(--line)}
.plot .edge{stroke:var(--quiet)}
.plot .track{fill:var(--track)}
.plot .full{stroke:var(--text);stroke-width:1.5;stroke-dasharray:4 3}
polyline{fill:none;stroke-width:2;stroke-linejoin:round}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;list-style:none;margin:.3rem 0 0;padding:0;
font-size:.86rem}
.legend li{display:flex;align-items:center;gap:.4rem;min-width:0}
.legend svg{flex:none}
line{stroke-width:1}
.legend line{stroke-width:2}
details{margin-top:.7rem}
details.card{margin-top:0}
details.card>.card{border:0;padding:0;margin:.6rem 0 0}
summary{cursor:pointer;color:var(--link);font-size:.9rem}
summary h3{display:inline;color:var(--text)}
summary h3 .quiet{font-weight:400}
.measured{padding-top:.6rem;padding-bottom:.6rem;margin-bottom:.5rem}
pre{margin:.5rem 0 0;padding:.8rem;background:var(--page);border:1px solid var(--line);
border-radius:.4rem;white-space:pre-wrap;max-height:24rem;overflow:auto}
.told{padding-left:1.2rem}
.told li{margin:.2rem 0}
footer{color:var(--quiet);font-size:.86rem;padding-top:2rem;padding-bottom:2.5rem}
@media(max-width:36rem){header,main,footer{padding-left:.75rem;padding-right:.75rem}
.facts{grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr))}
nav ul{flex-wrap:nowrap;overflow-x:auto;white-space:nowrap;padding-left:.75rem;padding-right:.75rem}
.wide th,.wide td{padding:.4rem}
.wide tbody th:not(.number){min-width:8rem}
.banner,.card{padding:.85rem .9rem}
.checks th,.checks td{padding:.5rem .35rem}
.checks .title{display:block;margin-left:0}}
@media print{body{background:#fff;font-size:11pt}
nav{display:none}
.card,.banner{break-inside:avoid-page}
pre{max-height:none}
.wide{overflow:visible}
details:not(.raw)::details-content{content-visibility:visible;display:block;height:auto}
.raw{display:none}
h2,h3,h4{break-after:avoid}
tr{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def sheet() -> str:
    """The whole style sheet. Print is always light."""
    light, dark = _variables(LIGHT), _variables(DARK)
    series = "".join(
        "polyline.{0},line.{0}{{stroke:var(--{0})}}circle.{0},rect.{0}{{fill:var(--{0})}}".format(s)
        for s in SERIES
    )
    return (
        ":root{color-scheme:light dark;" + light + "}"
        "@media screen and (prefers-color-scheme:dark){:root{" + dark + "}}"
        "@media print{:root{color-scheme:light}}" + series + _RULES.replace("\n", "")
    )


def _variables(colours: "dict[str, str]") -> str:
    return "".join("--{}:{};".format(name, colour) for name, colour in colours.items())
