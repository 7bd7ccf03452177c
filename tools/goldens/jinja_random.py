"""Random templates over the variables s, t (texts), n, m (ints), f (a float), l (a list), d (a dict), b (or none), u (undefined).

Left out is what ours does otherwise on purpose: integers of more than 64 bits, and a negative number to a power that
is no constant, which jinja2 writes as Python's -1 ** x, and that is -(1 ** x)."""
import random
import re

WORDS = ["", "a", "Ab c", " x ", "\nn\n", "é漢", "aXbXc", "<|e|>", "it's", 'q"q', "10", "-3", "2.5", "ß", "one two  three"]

# <name> stands for one of the texts of that name. In statements [% and %] are {% and %} with or without signs.
GRAMMAR = {
    "integer": ["n", "m", "0", "1", "2", "-1", "7", "(l|length)", "(s|length)"],
    "bound": ["", "<integer>", "<integer>"],
    "slice": ["<bound>:<bound>", "<bound>:<bound>:<stride>", "<bound>:"],
    "stride": ["-1", "2", "-2", "1"],
    "text": [
        "s", "t", "<literal>", "(<text> ~ <any>)", "(<text> + <text>)", "<text>[<slice>]", "(<text> * 0)", "(<text> * 2)",
        "(<text>|<text_filter>)", "(<text>|replace(<text>, <text>))", "<text>.strip()", "<text>.lstrip()", "<text>.rstrip()",
        "<text>.strip(<literal>)", "<text>.lstrip(<literal>)", "<text>.rstrip(<literal>)", "<text>.upper()", "<text>.lower()",
        "<text>.title()", "<text>.capitalize()", "<text>.replace(<text>, <text>)", "<text>.replace(<text>, <text>, 1)",
        "<text>.join(<list>)", "(<list>|join)", "(<list>|join(<literal>))", "(<text> if <any> else <text>)", "(<any>|tojson)",
        "(<any>|string)", "('%s|%r' % (<any>, <any>))", "(<any>|default(<text>))", "(<any>|default(<text>, true))",
        "<text>.split()[<integer>]", "<text>.split(<literal>)[<integer>]", "<text>.rsplit(none, 1)[-1]",
        "<text>.rsplit(<literal>, 1)[-1]", "<text>.partition(<literal>)[1]", "<text>.rpartition(<literal>)[2]",
    ],
    "text_filter": ["upper", "lower", "trim", "title", "capitalize", "reverse", "string", "length|string", "indent",
                    "indent(2, true)", "tojson", "first", "last", "list|join", "wordcount|string"],
    "list": [
        "l", "[<any>, <any>]", "(<any>, <any>)", "<list>[<slice>]", "(<list> + <list>)", "(<list>|<list_filter>)",
        "<text>.split()", "<text>.splitlines()", "(range(<integer>)|list)", "(d|dictsort)", "(d.items()|list)", "(d|list)",
        "(d.values()|list)", "(d.keys()|list)", "(d|items|list)",
    ],
    "list_filter": ["list", "sort", "reverse|list", "unique|list", "sort(reverse=true)", "map(attribute='k')|list", "select|list",
                    "reject('none')|list", "selectattr('k')|list", "batch(2)|list", "map('string')|list"],
    "any": [
        "<text>", "<text>", "<list>", "<integer>", "d", "f", "b", "u", "(<integer> <operator> <integer>)",
        "(<base> ** <integer>)", "(f <operator> <divisor>)", "(<any> == <any>)", "(<any> != <any>)", "(<any> and <any>)",
        "(<any> or <any>)", "(<integer> <order> <integer>)", "(<text> in <text>)", "(<text> not in <text>)", "(<text> <order> <text>)",
        "(<any> in <list>)", "(<any> not in <list>)", "(not <any>)", "(<any> is <test>)", "(<any> is not <test>)",
        "{<text>: <any>, 'z': <any>}", "d.a", "d.k", "d.zz", "d[<text>]", "d.get(<text>)", "d.get(<any>, 5)", "(<any> in d)",
        "<list>[<integer>]", "(<text>|int)", "(<text>|int(9))", "(<text>|float)", "(f|round)", "(f|round(1))", "(f|round(0, 'floor'))",
        "(<list>|<reduction>)", "<text>.<search>(<text>)", "<text>.<question>()", "(<any> if <any>)", "(-<integer>)|abs",
    ],
    "operator": ["+", "-", "*", "//", "%", "/"],
    "base": ["n", "m", "0", "1", "2", "7"],
    "divisor": ["n", "2", "0.5", "f"],
    "order": ["<", "<=", ">", ">="],
    "test": ["defined", "none", "string", "number", "mapping", "sequence", "iterable", "true", "false", "boolean", "integer", "float",
             "undefined"],
    "reduction": ["length", "first", "last", "min", "max", "sum"],
    "search": ["find", "count", "startswith", "endswith", "rfind"],
    "question": ["isdigit", "isspace", "isupper", "islower", "isalpha"],
    "space": ["", "", " ", "\n", "\n  "],
    "output": ["<space>{{ <any> }}<space>", "<space>{{- <any> }}<space>", "<space>{{ <any> -}}<space>"],
    "body": ["<statement>", "<statement><statement>"],
    "loop_end": ["", "[% if loop.last %]!{% endif %}", "[% break %]", "[% continue %]"],
    "statement": [
        "<output>", "<space>text<space>", "<space>é<space>", "<space>{<space>", "<space>%<space>",
        "<space>{#- c #}<space>", "<space>{# c -#}<space>",
        "<space>[% if <any> %]<body>[% elif <any> %]<body>[% else %]<body>[% endif %]<space>",
        "<space>[% for x in <list> %]{{ loop.index }}:{{ x }}<body><loop_end>[% else %]<body>[% endfor %]<space>",
        "<space>[% for x in <list> if x %]{{ loop.index }}:{{ x }}<body><loop_end>[% endfor %]<space>",
        "[% set s = <text> %]<space>{{ s }}", "[% set t = <text> %]<space>{{ s }}", "[% set w %]<body>[% endset %]{{ w|length }}",
        "[% set ns = namespace(q=<any>) %][% for y in <list> %][% set ns.q = ns.q ~ y %][% endfor %]{{ ns.q }}",
        "[% macro g(p, r=<any>) %]<body>{{ p }}{{ r }}[% endmacro %]{{ g(<any>) }}{{ g(<any>, r=<any>) }}",
        "[% macro c() %]<body>{{ caller(<any>) }}[% endmacro %][% call(x) c() %]<body>{{ x }}[% endcall %]",
        "[% filter upper %]<body>[% endfilter %]", "[% filter trim %]<body>[% endfilter %]",
        "[% filter replace('a', 'b') %]<body>[% endfilter %]", "[% generation %]<body>[% endgeneration %]",
        "[% with k = <any> %]<body>{{ k }}[% endwith %]", "{% raw %}{{ x }}{% endraw %}<space>", "{%- raw %} {% if %} {% endraw -%}",
    ],
    "template": ["<statement>", "<statement><statement>", "<statement><statement><statement>"],
}
SHALLOW = {"text": ["s", "t", "<literal>"], "list": ["l"], "any": ["n", "s", "l", "d", "b", "u", "none", "f"],
           "statement": ["<output>"]}
DEEPEST = {"text": 4, "list": 4, "any": 4, "statement": 3}


class RandomTemplate:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.expressions = self.statements = 0  # within each other

    def expand(self, name):
        if name == "literal":
            word = self.random.choice(WORDS)
            return "'" + word.replace("'", "\\'").replace("\n", "\\n") + "'"
        is_statement = name == "statement"
        depth = self.statements if is_statement else self.expressions
        counted = name in SHALLOW
        form = self.random.choice(SHALLOW[name] if counted and depth >= DEEPEST[name] else GRAMMAR[name])
        form = form.replace("[%", self.random.choice(["{%", "{%-", "{%", "{%+"]))
        form = form.replace("%]", self.random.choice(["%}", "-%}", "%}", "+%}"]))
        outer = self.expressions, self.statements
        if is_statement:
            self.statements += 1
            self.expressions = 0
        elif counted:
            self.expressions += 1
        text = re.sub(r"<(\w+)>", lambda match: self.expand(match[1]), form)
        self.expressions, self.statements = outer
        return text

    def template(self):
        return self.expand("template")

    def variables(self):
        choose = self.random.choice

        def words(count):
            return [choose(WORDS) for _ in range(count)]

        return {"s": choose(WORDS), "t": choose(WORDS), "n": self.random.randint(-5, 9), "m": self.random.randint(0, 4),
                "f": choose([0.5, -2.25, 1e16, 3.0, 1e-7]),
                "l": choose([words(3), [3, 1, 2], [{"k": 2, "v": "b"}, {"k": 1, "v": "A"}, {"k": 2}], []]),
                "d": choose([{"a": 1, "B": "x", "c": None}, {"k": words(2)}, {}]), "b": choose([True, False, None])}
