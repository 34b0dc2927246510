"""Abbreviations and words that begin sentences, by language: the tables of `translume.text.sentences`."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

_WORDS: Final = {
    "en": "prof gen rev hon sen rep gov capt col maj adm messrs insp supt pres approx inc corp co jr sr al dept univ"
    " ave assn bros esp est misc e.g i.e cf viz",
    "de": "mio prof ing dipl inkl exkl allg evtl gegr geb sog ca dr hl st tel fa fr jur med phil rer nat em hrsg kath"
    " evang jap engl griech lat bes entspr gem ggf insb mind rd zzgl abzgl jh orig österr aufl ges u.a",
    "fr": "m mm mme mmes mlle apr prof dr av bd éd env ex cie chap suiv mgr st ste resp tél s exc",
    "es": "sr sra srta sres dr dra prof profa d dña ud uds vd vds sto sta gral cnel lic ing arq av avda pza ed cía"
    " aprox ee uu excmo excma ilmo hno dpto depto tel p.ej d.ª mons fr pbro cf",
    "it": "sig sig.ra sig.na sigg dott dott.ssa prof prof.ssa avv ing rag geom arch on sen mons gen col cap ten s ss"
    " san ca ecc.mo f.lli es p.za c.so v.le ed cfr spett egr gent tel",
    "nl": "dhr mevr mej mw prof dr drs mr ir ing ds st gen kol kap ca co bijv red gebr kon h.k.h z.k.h tel",
    "ru": "проф акад ул пл пр просп пер наб бул св им о г-н г-жа тов гос ок изд ред инж ген полк кап лейт тел оз обл"
    " прим напр доц канд",
    "pl": "prof gen al ul pl os św ks kard abp bp o inż red wyd hab tel np tzw ppłk por kap zob",
    "pt": "srs sra drs dra prof profa eng arq av sto sta exmo exma ilmo cia dep ed gal cap cel tel séc aprox pág págs",
    "ar": "د أ م ص ج ت ق هـ أ.د",
    "hi": "डॉ प्रो पं कु मो रु मि मी पृ सं रा ई पू एम बी एड प्र चौ लि इंजी जन फर सितं अक्टू नवं दिसं स्व",
}  # fmt: skip
"""Abbreviations that do not end a sentence, unless a word of `_STARTS` follows."""

_NUMBERED: Final = {
    "en": "no nos art sec fig figs tab ch chap vol p pp par ext eq ref jan feb mar apr jun jul aug sep sept oct nov"
    " dec min",
    "de": "art abs tab abb kap nr nrn bd ziff anm jan feb jän apr jun jul aug sep sept okt nov dez mio min abt s vol"
    " fig",
    "fr": "réf no nos art al fig tabl chap p pp vol t éd janv févr avr juil sept oct nov déc tél poste",
    "es": "no núm núms art arts fig figs tab cap caps pág págs p pp vol vols t apdo ene feb mar abr may jun jul ago"
    " sept oct nov dic min tel",
    "it": "sec n nn art artt fig tab cap capp pag pagg p pp vol voll c gen feb mar apr mag giu lug ago set sett ott"
    " nov dic min",
    "nl": "no nr art fig tab dl hfst blz p pp jan feb febr mrt apr jun jul aug sep sept okt nov dec tst lid min",
    "ru": "рис табл гл стр с т п ст кн вып янв февр апр авг сент окт нояб дек тел",
    "pl": "ok nr art ust rys tab rozdz s str t stycz lut kwiet lip sierp wrześ paźdz listop grudz poz par pkt tel"
    " godz",
}  # fmt: skip
"""Abbreviations that do not end a sentence before a number: other words may be spelt alike."""

_STARTS: Final = {
    "en": "the a an he she it they we you i this that these those there his her its their our my your in on at after"
    " before when while if but and so then no not what why who how where as for from to some many most all both"
    " each however now once since although yes please do did is are was nobody everyone soon later today",
    "de": "der die das den dem des er sie es wir ihr ich du man ein eine einen einem einer kein keine dies diese"
    " dieser dieses sein seine ihre im in am an auf aus bei mit nach von vor zu zum zur um über unter für durch"
    " ohne seit ab bis und aber oder doch denn dann da dort hier so nun jetzt heute morgen gestern als wenn weil"
    " ob dass wie was wer wo warum wann danach später beide viele alle manche einige nur auch nicht niemand"
    " jeder damals dennoch trotzdem außerdem jeden meine unser mein ja nein bitte ist sind war hat oben",
    "fr": "le la les l un une des il elle on ils elles nous vous je j tu ce c cet cette ces son sa ses leur leurs mon"
    " ma mes notre votre en au aux à dans sur sous avec pour par après avant quand si mais et puis alors ne n y"
    " où qui que qu quel quelle comment pourquoi tout tous d ainsi cela oui non sans depuis",
    "es": "el la los las un una unos unas lo él ella ellos nosotros yo tú se su sus mi mis este esta estos ese esa"
    " eso esto en al a con de por para sin sobre tras desde hasta cuando si pero y o no ni que qué quién cómo"
    " dónde cuándo luego después antes entonces hay es era fue todo todos nadie ya hoy ayer mañana así también"
    " aunque",
    "it": "il lo la i gli le l un una uno egli lui lei noi voi loro io tu si suo sua suoi sue mio mia questo questa"
    " quello in nel nella al alla a con di del per da su tra fra senza dopo prima quando se ma e o non che chi"
    " come dove perché poi allora c è era fu tutti tutto nessuno già oggi ieri domani così anche ne ci",
    "nl": "de het een hij zij ze we wij u je jij ik men er dit dat deze die zijn haar hun ons onze in op aan bij met"
    " na van voor uit om over onder tot door zonder toen als wanneer maar en of want dus dan daar hier nu niet"
    " geen wat wie waar hoe waarom alle veel niemand iedereen later daarna ook is was",
    "pt": "o a os as um uma ele ela eles elas nós eu em no na nos nas ao à do da dos das com por para sem sobre"
    " quando se mas e não que quem como onde então depois antes hoje ontem é foi também este esta isso seu sua",
    "ru": "он она оно они мы вы я ты это этот эта эти его её их в на по из от до за при у к с о об для без после"
    " перед через под над когда если но и а или не ни что кто как где почему потом тогда затем там здесь теперь"
    " сейчас все всё никто уже так тоже был была было сегодня вчера завтра однако",
    "pl": "on ona ono oni my wy ja ty to ten ta te jego jej ich w we na po z ze od do za przy u o dla bez przed przez"
    " pod nad kiedy gdy jeśli ale i a lub nie co kto jak gdzie dlaczego potem wtedy tam tu teraz wszyscy"
    " wszystko nikt już tak też był była było są jest dziś wczoraj jutro jednak",
}  # fmt: skip
"""Words that seldom follow an abbreviation with a capital letter unless they begin a sentence."""

_SAYS: Final = {
    "en": r"(?:\w+ ){1,3}(?:said|asked|shouted|cried|replied|whispered|murmured|muttered|answered|called|yelled)\b",
    "ar": r"(?:و|قال|سأل|صاح|همس|صرخ|أجاب|رد|هتف|أضاف)",
    "hi": r"[^।॥!?]{,40}(?:कहा|पूछा|बोल|चिल्ला|पुकार|फुसफुसा)",
    "zh": r"(?:的|时|時)|[^。！？“「]{,16}[说說问問道喊叫答写寫讲講]",
    "ko": r"[^.!?]{,30}(?:말했|말한|물었|외쳤|대답|속삭)",
    "ja": r"[^。！？「]{,24}(?:言っ|言い|叫|聞い|尋ね|答え|話し|つぶや|ささや|呼ん)",
}
"""What follows a quotation that its sentence goes on after, although no comma or lower-case letter does."""


_LIKE: Final = {"ca": "es", "gl": "es", "uk": "ru", "be": "ru", "bg": "ru", "lb": "de", "af": "nl"}
"""Languages with the tables of another one."""

_ORDINALS: Final = (
    "",
    "de",
    "lb",
    "da",
    "nb",
    "nn",
    "fi",
    "et",
    "lv",
    "cs",
    "sk",
    "sl",
    "hr",
    "bs",
    "sr",
    "hu",
    "tr",
    "is",
)
"""Languages that write a full stop after ordinals, and a text whose language is unknown."""

_TITLES: Final = "dr prof m mm mr mrs ms mme mlle mgr sr sra srta sig sig.ra dott"
"""Abbreviations that never end a sentence: "M. Le Goff"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceRules:
    """What is known of a language.  `ordinals`: whether "3. Mai" is one sentence although a capital letter follows."""

    words: frozenset[str]
    numbered: frozenset[str]
    starts: frozenset[str]
    says: re.Pattern[str]
    ordinals: bool
    titles: frozenset[str] = frozenset(_TITLES.split())


@cache
def rules_of(code: str) -> SentenceRules:
    """Return the rules of a language, by its ISO 639-1 code; for another one, what all languages have in common.

    Latin words in other scripts have the rules of English.
    """
    ordinals, code = code in _ORDINALS, _LIKE.get(code, code)
    known = code in _WORDS or code in _SAYS
    codes = [code] if code in _STARTS else [code, "en"] if known else [*_STARTS]
    words, numbered, starts = (
        frozenset(" ".join(table.get(each, "") for each in codes).split()) for table in (_WORDS, _NUMBERED, _STARTS)
    )
    says = "|".join(_SAYS[each] for each in ([code] if known else ["zh", "ja", "ko"]) if each in _SAYS)
    return SentenceRules(
        words=words if known else frozenset(_TITLES.split()),
        numbered=numbered,
        starts=starts,
        says=re.compile(says or "(?!)"),
        ordinals=ordinals,
    )
