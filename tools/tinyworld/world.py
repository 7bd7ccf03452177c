#!/usr/bin/env python3
"""The small world that the tiny model lives in: a seeded generator of documents and of questions with known answers.

    python3 tools/tinyworld/world.py --split train --count 3 --seed 7      # look at some documents
    python3 tools/tinyworld/world.py --heldout models/tinyworld/eval       # write the held-out items
    python3 tools/tinyworld/world.py --stories 128 --seed 1                # stories for calibration

Every fact is a triple (kind, subject, value): ("home", "Mara", "Oakfield"), ("add", 37, 48), ("code", "Leo", 4821). A
hash of the triple puts it into one of two splits, one in eight is held out. Documents of the split "train" state facts
of the training split only, held-out documents held-out facts only, so that the two share no item, whatever the seeds.
(The reverse of a held-out sum is held out with it.) Towns have fixed facts, which the model must learn by heart: all of
them are stated in training, but every fourth town is never asked about there.

Tasks: stories with questions (one step and two steps), addition, JSON records, copying, recall over a long context,
facts of towns, chats in ChatML. A document is plain text; chats contain the ChatML tags as text, which the tokenizer
turns into special tokens.
"""

import argparse
import json
import random
import zlib
from pathlib import Path

import words as w

TRAIN, HELDOUT = "train", "heldout"
IM_START, IM_END = "<|im_start|>", "<|im_end|>"


def held_out(*fact):
    return (zlib.crc32("|".join(map(str, fact)).encode()) * 0x9E3779B1 >> 16) % 8 == 0


def towns():
    rng = random.Random(1)
    names = [head + tail for head in w.TOWN_HEADS for tail in w.TOWN_TAILS]
    rng.shuffle(names)
    return names[:96]


TOWNS = towns()
TOWNS_NEVER_ASKED = set(TOWNS[::4])  # in training: stated, but no question about them
RIVER_OF = {town: random.Random("river" + town).choice(w.RIVERS) for town in TOWNS}
GOOD_OF = {town: random.Random("good" + town).choice(w.GOODS) for town in TOWNS}
LIST_NAMES = [(name, "she") for name in w.WOMEN] + [(name, "he") for name in w.MEN]


def article(noun):
    return "an" if noun[0] in "aeiou" else "a"


def listing(items):
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


class Person:
    """One person of one document, with the facts that the document may state."""

    def __init__(self, name, pronoun):
        self.name = name
        self.pronoun = pronoun
        self.possessive = "her" if pronoun == "she" else "his"
        self.facts = {}  # kind -> value, what the story says


class World:
    """Draws the facts of one split. All randomness comes from `rng`."""

    def __init__(self, split, rng):
        self.split = split
        self.rng = rng
        self.first_holders = {}  # of the latest story: thing -> name, before any gift

    # --- facts -------------------------------------------------------------------------------------------------

    def allowed(self, *fact):
        return held_out(*fact) == (self.split == HELDOUT)

    def draw(self, kind, subject, pool):
        """A value from the pool, so that the fact belongs to this split; None where the pool holds no such value."""
        for _ in range(12):
            value = self.rng.choice(pool)
            if self.allowed(kind, subject, value):
                return value
        values = [value for value in pool if self.allowed(kind, subject, value)]
        return self.rng.choice(values) if values else None

    def invented_name(self):
        rng = self.rng
        parts = [rng.choice(w.ONSETS) + rng.choice(w.VOWELS) + rng.choice(w.CODAS) for _ in range(rng.randint(2, 3))]
        return "".join(parts).capitalize()

    def people(self, count):
        """People with different names; some of the names are made up on the spot."""
        rng, out, seen = self.rng, [], set()
        invented = rng.choice([0.0, 0.1, 0.5])
        while len(out) < count:
            name, pronoun = rng.choice(LIST_NAMES)
            if rng.random() < invented:
                name = self.invented_name()
            if name not in seen:
                seen.add(name)
                out.append(Person(name, pronoun))
        return out

    def thing(self, person):
        for _ in range(1000):
            value = self.rng.choice(w.COLOURS) + " " + self.rng.choice(w.THINGS)
            if self.allowed("thing", person.name, value):
                return value
        raise RuntimeError("no thing")

    def number(self, kind, subject, low, high):
        for _ in range(1000):
            value = self.rng.randint(low, high)
            if self.allowed(kind, subject, value):
                return value
        raise RuntimeError("no number")

    def sum_pair(self, low=0):
        """Two numbers below 100. The held-out split asks for two digits each."""
        rng = self.rng
        low = 10 if self.split == HELDOUT else low
        while True:
            a, b = rng.randint(low, 99), rng.randint(low, 99)
            if self.allowed("add", min(a, b), max(a, b)):
                return a, b

    # --- stories -----------------------------------------------------------------------------------------------

    def filler(self, people):
        """A sentence that states no fact anyone asks about."""
        rng = self.rng
        person = rng.choice(people)
        name, mood, spot, time = person.name, rng.choice(w.MOODS), rng.choice(w.SPOTS), rng.choice(w.TIMES)
        other, weather, thing = rng.choice(people).name, rng.choice(w.WEATHERS), rng.choice(w.THINGS)
        pattern = rng.randrange(12)
        if pattern == 0:
            return f"It was {article(weather)} {weather} day."
        if pattern == 1:
            return f"{name} felt {mood} {time}."
        if pattern == 2:
            return f"{time[0].upper() + time[1:]} {name} went to the {spot}."
        if pattern == 3:
            return f"The sound of {rng.choice(w.SOUNDS)} came from the {spot}."
        if pattern == 4:
            return f"The {spot} was {weather} and the people were {mood}."
        if pattern == 5:
            return f"{name} {rng.choice(w.VERBS_PAST)} {article(thing)} {thing} behind the {spot}."
        if pattern == 6:
            return f"\"{rng.choice(['Listen', 'Look', 'Wait', 'Well', 'Oh', 'Now'])}, I am {mood},\" said {name}."
        if pattern == 7:
            return f"{name} walked from the {spot} to the {rng.choice(w.SPOTS)} and back."
        if pattern == 8:
            return f"Everyone at the {spot} talked about the {weather} weather."
        if pattern == 9 and other != name:
            return f"{name} and {other} met at the {spot} {time}."
        if pattern == 10:
            return f"{person.possessive.capitalize()} {rng.choice(['mother', 'father', 'sister', 'brother', 'aunt'])} " \
                   f"was {mood} that day, and {name} was {rng.choice(w.MOODS)}."
        return f"{name} dreamed of {article(weather)} {weather} {rng.choice(w.PLAIN_WORDS)}."

    def introduce(self, people, facts_each):
        """Gives every person some facts; returns the sentences of each person, in an order that reads well."""
        rng, paragraphs = self.rng, []
        kinds = ["home", "job", "thing", "knows", "pet", "food", "age"]
        homes, jobs, things = set(), set(), set()  # one person each, so that "Who ...?" has one answer
        for person in people:
            chosen = rng.sample(kinds, min(len(kinds), rng.randint(*facts_each)))
            sentences = []
            for kind in chosen:
                subject = person.name if not sentences or rng.random() < 0.4 else person.pronoun.capitalize()
                sentence = None
                if kind == "home":
                    town = self.draw(kind, person.name, TOWNS)
                    if town and town not in homes:
                        homes.add(town)
                        person.facts[kind] = town
                        sentence = rng.choice(["{s} lives in {v}.", "{s} has a house in {v}.", "The home of {n} is {v}.",
                                               "{s} comes from {v} and still lives there."])
                        sentence = sentence.format(s=subject, n=person.name, v=town)
                elif kind == "job":
                    job = self.draw(kind, person.name, w.JOBS)
                    if job and job not in jobs:
                        jobs.add(job)
                        person.facts[kind] = job
                        sentence = rng.choice(["{s} is {a} {v}.", "{s} works as {a} {v}.", "{s} earns money as {a} {v}.",
                                               "The job of {n} is {v}."])
                        sentence = sentence.format(s=subject, n=person.name, a=article(job), v=job)
                elif kind == "thing":
                    thing = self.thing(person)
                    if thing not in things:
                        things.add(thing)
                        person.facts[kind] = thing
                        sentence = rng.choice(["{s} has {a} {v}.", "{s} owns {a} {v}.", "{s} carries {a} {v}.",
                                               "{s} bought {a} {v}."])
                        sentence = sentence.format(s=subject, a=article(thing), v=thing)
                elif kind == "knows":
                    others = [p.name for p in people if p is not person and self.allowed(kind, person.name, p.name)]
                    if others:
                        friend = rng.choice(others)
                        person.facts[kind] = friend
                        sentence = rng.choice(["{s} knows {v}.", "{s} is a friend of {v}.", "{s} often visits {v}."])
                        sentence = sentence.format(s=subject, v=friend)
                elif kind == "pet":
                    animal, pet = rng.choice(w.ANIMALS), self.draw(kind, person.name, w.PET_NAMES)
                    if pet:
                        person.facts[kind] = pet
                        person.animal = animal
                        sentence = rng.choice(["{s} has {a} {x} called {v}.", "{s} keeps {a} {x} named {v}.",
                                               "The {x} of {n} is called {v}."])
                        sentence = sentence.format(s=subject, n=person.name, a=article(animal), x=animal, v=pet)
                elif kind == "food":
                    food = self.draw(kind, person.name, w.FOODS)
                    if food:
                        person.facts[kind] = food
                        sentence = rng.choice(["{s} likes {v}.", "{s} eats {v} every day.",
                                               "The favourite food of {n} is {v}."])
                        sentence = sentence.format(s=subject, n=person.name, v=food)
                else:
                    age = self.number(kind, person.name, 7, 99)
                    person.facts[kind] = age
                    sentence = rng.choice(["{s} is {v} years old.", "{s} turned {v} this year.", "{n}, now {v}, feels young."])
                    sentence = sentence.format(s=subject, n=person.name, v=age)
                if sentence:
                    sentences.append(sentence)
            paragraphs.append(sentences)
        return paragraphs

    def story(self, num_people, facts_each=(2, 5), filler=0.4, gifts=0.35):
        """Returns (people, holders, text). holders: thing -> name, after all gifts."""
        rng = self.rng
        people = self.people(num_people)
        # Fillers stand between the paragraphs of two people, so that "she" always means the paragraph's own person.
        body = []
        for sentences in self.introduce(people, facts_each):
            body.extend(sentences)
            while rng.random() < filler:
                body.append(self.filler(people))
        holders = {p.facts["thing"]: p.name for p in people if "thing" in p.facts}
        self.first_holders = dict(holders)
        if holders and num_people > 1 and rng.random() < gifts:
            for _ in range(rng.randint(1, 2)):
                thing = rng.choice(list(holders))
                takers = [p.name for p in people if p.name != holders[thing] and self.allowed("thing", p.name, thing)]
                if takers:
                    taker = rng.choice(takers)
                    giver, holders[thing] = holders[thing], taker
                    body.append(rng.choice(["{g} gave the {t} to {r}.", "{r} took the {t} from {g}.",
                                            "{g} sold the {t} to {r}."]).format(g=giver, t=thing, r=taker))
                if rng.random() < filler:
                    body.append(self.filler(people))
        return people, holders, " ".join(body)

    def questions(self, people, holders):
        """All questions a story answers: (kind, question, answer)."""
        out, by_name = [], {p.name: p for p in people}
        moved = {thing for thing, name in holders.items() if self.first_holders[thing] != name}
        holding = {}
        for thing, name in holders.items():
            holding.setdefault(name, []).append(thing)
        for p in people:
            f = p.facts
            if "home" in f:
                out.append(("home", f"Where does {p.name} live?", f["home"]))
                out.append(("who", f"Who lives in {f['home']}?", p.name))
            if "job" in f:
                out.append(("job", f"What is the job of {p.name}?", f["job"]))
                out.append(("who", f"Who works as {article(f['job'])} {f['job']}?", p.name))
            if len(holding.get(p.name, [])) == 1:
                thing = holding[p.name][0]
                out.append(("thing", f"What does {p.name} have?", f"{article(thing)} {thing}"))
            if "knows" in f:
                out.append(("knows", f"Who does {p.name} know?", f["knows"]))
                friend = by_name[f["knows"]].facts
                if "home" in friend:
                    out.append(("two steps", f"Where does the friend of {p.name} live?", friend["home"]))
                if "job" in friend:
                    out.append(("two steps", f"What is the job of the friend of {p.name}?", friend["job"]))
                if "age" in friend:
                    out.append(("two steps", f"How old is the friend of {p.name}?", str(friend["age"])))
            if "pet" in f:
                out.append(("pet", f"What is the {p.animal} of {p.name} called?", f["pet"]))
            if "food" in f:
                out.append(("food", f"What does {p.name} like to eat?", f["food"]))
            if "age" in f:
                out.append(("age", f"How old is {p.name}?", str(f["age"])))
        for thing, name in holders.items():
            kind = "who has it now" if thing in moved else "who"
            out.append((kind, f"Who has the {thing}?", name))
            holder = by_name[name].facts
            if "home" in holder:
                out.append(("two steps", f"Where does the owner of the {thing} live?", holder["home"]))
        return out

    def story_document(self, long=False):
        """A story, then questions: (text of the story, [(kind, question, answer)])."""
        rng = self.rng
        while True:
            if long:
                people, holders, text = self.story(rng.randint(8, 18), (2, 5), filler=rng.choice([0.3, 0.6]))
            else:
                people, holders, text = self.story(rng.randint(1, 7), (2, 5), filler=rng.choice([0.1, 0.4, 0.6]))
            questions = self.questions(people, holders)
            if questions:
                break
        rng.shuffle(questions)
        return text, questions

    # --- other tasks -------------------------------------------------------------------------------------------

    def record(self):
        """(sentences, the object they describe)."""
        rng = self.rng
        person = self.people(1)[0]
        name = person.name
        values = {
            "age": self.number("age", name, 7, 99),
            "town": self.draw("home", name, TOWNS),
            "job": self.draw("job", name, w.JOBS),
            "things": [self.thing(person) for _ in range(rng.randint(1, 3))],
            "pet": self.draw("pet", name, w.PET_NAMES),
            "food": self.draw("food", name, w.FOODS),
        }
        record, sentences = {"name": name}, []
        for field in rng.sample([field for field, value in values.items() if value], rng.randint(2, 5)):
            value = values[field]
            if field == "age":
                told = f"is {value} years old"
            elif field == "town":
                told = f"lives in {value}"
            elif field == "job":
                told = f"works as {article(value)} {value}"
            elif field == "food":
                told = f"likes {value}"
            elif field == "pet":
                value = {"kind": rng.choice(w.ANIMALS), "name": value}
                told = f"has {article(value['kind'])} {value['kind']} called {value['name']}"
            else:
                told = f"owns {listing([article(thing) + ' ' + thing for thing in value])}"
            record[field] = value
            sentences.append(f"{person.pronoun.capitalize() if sentences else name} {told}.")
        if rng.random() < 0.3:
            record["married"] = rng.random() < 0.5
            sentences.append(f"{person.pronoun.capitalize()} is {'' if record['married'] else 'not '}married.")
        return " ".join(sentences), record

    def word_list(self, low, high):
        """Words to copy. A list belongs to a split by its first two words."""
        rng = self.rng
        count = rng.randint(low, high)
        while True:
            made = [self.invented_name().lower() if rng.random() < 0.25 else rng.choice(w.PLAIN_WORDS)
                    for _ in range(count)]
            if self.allowed("list", *made[:2]):
                return " ".join(made)

    def codes(self, long):
        """A text with people's codes spread over it, and questions: (text, [(question, answer)])."""
        rng = self.rng
        people = self.people(rng.randint(3, 12))
        sentences, questions = [], []
        for person in people:
            code = self.number("code", person.name, 1000, 9999)
            sentences.append(f"The secret code of {person.name} is {code}.")
            questions.append((f"What is the secret code of {person.name}?", str(code)))
        others = self.people(6)
        for _ in range(rng.randint(20, 85) if long else rng.randint(0, 12)):
            sentences.insert(rng.randint(0, len(sentences)), self.filler(others))
        rng.shuffle(questions)
        return " ".join(sentences), questions

    def town_to_ask(self):
        while True:
            town = self.rng.choice(TOWNS)
            if (town in TOWNS_NEVER_ASKED) == (self.split == HELDOUT):
                return town

    def town_statements(self, town):
        river, good = RIVER_OF[town], GOOD_OF[town]
        return [
            self.rng.choice([f"{town} lies on the river {river}.", f"The river {river} runs through {town}.",
                             f"In {town} boats go down the river {river}."]),
            self.rng.choice([f"{town} is known for its {good}.", f"The people of {town} sell {good}.",
                             f"Merchants come to {town} to buy {good}."]),
        ]

    def town_questions(self, town):
        return [(f"Which river runs through {town}?", RIVER_OF[town]), (f"What is {town} known for?", GOOD_OF[town])]

    # --- chats -------------------------------------------------------------------------------------------------

    def chat_turns(self):
        """A short exchange: [(user, assistant, answer)]; answer is what the reply must contain, None if free."""
        rng = self.rng
        kind = rng.randrange(8)
        if kind == 0:
            a, b = self.sum_pair()
            ask = rng.choice(["What is {a} + {b}?", "Please add {a} and {b}.", "How much is {a} plus {b}?"])
            return [(ask.format(a=a, b=b), f"{a} + {b} = {a + b}.", f"= {a + b}.")]
        if kind == 1:
            town = job = None
            while not (town and job):
                name = self.people(1)[0].name
                town, job = self.draw("home", name, TOWNS), self.draw("job", name, w.JOBS)
            turns = [(rng.choice(["Hello, I am {n}. I live in {t} and I work as {a} {j}.",
                                  "Hi! My name is {n}, I am {a} {j} and I live in {t}."]).format(
                                      n=name, t=town, a=article(job), j=job),
                      f"Hello {name}! How are things in {town}?", None)]
            asks = [("Where do I live?", f"You live in {town}."), ("What is my name?", f"Your name is {name}."),
                    ("What is my job?", f"You are {article(job)} {job}.")]
            rng.shuffle(asks)
            return turns + [(ask, reply, reply) for ask, reply in asks[:rng.randint(1, 3)]]
        if kind == 2:
            text, questions = self.story_document()
            turns = [(f"{text} {questions[0][1]}", f"{questions[0][2]}", questions[0][2])]
            return turns + [(q, a, a) for _, q, a in questions[1:rng.randint(1, 3)]]
        if kind == 3:
            text, record = self.record()
            reply = json.dumps(record)
            return [(f"Make a JSON record. {text}", reply, reply)]
        if kind == 4:
            text = self.word_list(3, 12)
            return [(rng.choice(["Please repeat: {t}", "Say this again: {t}"]).format(t=text), text, text)]
        if kind == 5:
            town = self.town_to_ask()
            question, answer = rng.choice(self.town_questions(town))
            return [(question, f"{answer[0].upper() + answer[1:]}.", f"{answer[0].upper() + answer[1:]}.")]
        if kind == 6:
            person = self.people(1)[0]
            text = " ".join(self.filler([person]) for _ in range(rng.randint(2, 5)))
            return [(f"Tell me a short story about {person.name}.", text, None)]
        return [(rng.choice(["Thank you!", "Thanks a lot.", "That is all for today."]),
                 rng.choice(["You are welcome!", "Goodbye!", "Until next time."]), None)]

    def chat(self):
        """(messages, answers): answers[i] is what messages[i] must contain where it is an assistant's checked reply."""
        rng = self.rng
        messages, answers = [], []
        if rng.random() < 0.4:
            messages.append(("system", rng.choice(["You are a helpful guide to a small world.", "Be brief.",
                                                   "You answer questions about the small world."])))
            answers.append(None)
        for _ in range(rng.choice([1, 1, 2, 3])):
            for user, assistant, answer in self.chat_turns():
                messages += [("user", user), ("assistant", assistant)]
                answers += [None, answer]
        return messages, answers


def render_chat(messages, add_generation_prompt=False):
    """ChatML, as Qwen3's template renders plain messages."""
    text = "".join(f"{IM_START}{role}\n{content}{IM_END}\n" for role, content in messages)
    return text + (f"{IM_START}assistant\n" if add_generation_prompt else "")


def story_prompt(text, question):
    return f"Story: {text}\nQuestion: {question}\nAnswer:"


def record_prompt(text):
    return f"Record: {text}\nJSON:"


def copy_prompt(text):
    return f"Text: {text}\nAgain:"


def addition_prompt(a, b):
    return f"{a} + {b} ="


def town_prompt(question):
    return f"Question: {question}\nAnswer:"


def document(world):
    """One training document: the tasks in proportion."""
    rng = world.rng
    roll = rng.random()
    if roll < 0.34:
        text, questions = world.story_document(long=rng.random() < 0.2)
        # Harder questions more often: two steps, who, and things that changed hands.
        hard = [q for q in questions if q[0] in ("two steps", "who", "who has it now")]
        chosen = list(dict.fromkeys(questions[:rng.randint(3, 8)] + hard[:rng.randint(2, 10)]))
        rng.shuffle(chosen)
        return f"Story: {text}" + "".join(f"\nQuestion: {q}\nAnswer: {a}" for _, q, a in chosen) + "\n"
    if roll < 0.52:
        lines = []
        for _ in range(rng.randint(1, 12)):
            a, b = world.sum_pair(low=rng.choice([0, 10, 10]))
            lines.append(f"{addition_prompt(a, b)} {a + b}\n")
        return "".join(lines)
    if roll < 0.64:
        out = []
        for _ in range(rng.randint(1, 3)):
            text, record = world.record()
            out.append(f"{record_prompt(text)} {json.dumps(record)}\n")
        return "".join(out)
    if roll < 0.72:
        text = world.word_list(2, rng.choice([12, 40, 120]))
        return f"{copy_prompt(text)} {text}\n"
    if roll < 0.80:
        text, questions = world.codes(long=rng.random() < 0.6)
        return f"Story: {text}" + "".join(f"\nQuestion: {q}\nAnswer: {a}" for q, a in questions[:6]) + "\n"
    if roll < 0.86:
        if rng.random() < 0.5:
            questions = [question for _ in range(3) for question in world.town_questions(world.town_to_ask())]
            rng.shuffle(questions)
            return "".join(f"{town_prompt(q)} {a}\n" for q, a in questions)
        statements = [s for town in rng.sample(TOWNS, 4) for s in world.town_statements(town)]
        rng.shuffle(statements)
        return " ".join(statements) + "\n"
    return render_chat(world.chat()[0])


# --- held-out items ----------------------------------------------------------------------------------------------


def heldout_items(seed=2024):
    """task -> items {"prompt", "answer", "kind", "max_tokens", "stop"}; "text" holds whole documents for perplexity."""
    world = World(HELDOUT, random.Random(seed))
    rng = world.rng
    items = {task: [] for task in ("qa", "two_steps", "addition", "json", "copy", "recall", "towns", "chat", "text")}

    def add(task, prompt, answer, kind, max_tokens, stop=("\n",)):
        items[task].append({"prompt": prompt, "answer": answer, "kind": kind, "max_tokens": max_tokens,
                            "stop": list(stop)})

    while len(items["qa"]) < 400 or len(items["two_steps"]) < 100:
        text, questions = world.story_document(long=rng.random() < 0.2)
        two = [q for q in questions if q[0] == "two steps"][:1]
        one = [q for q in questions if q[0] != "two steps"][:2]
        for task, limit, chosen in (("qa", 400, one), ("two_steps", 100, two)):
            for kind, question, answer in chosen:
                if len(items[task]) < limit:
                    add(task, story_prompt(text, question), answer, kind, 24)
    pairs = set()
    while len(pairs) < 300:
        pairs.add(world.sum_pair())
    for a, b in sorted(pairs):
        add("addition", addition_prompt(a, b), str(a + b), "addition", 8)
    for _ in range(200):
        text, record = world.record()
        add("json", record_prompt(text), json.dumps(record), "json", 160)
    for _ in range(100):
        text = world.word_list(4, rng.choice([12, 40, 100]))
        add("copy", copy_prompt(text), text, "copy", 420)
    for _ in range(150):
        text, questions = world.codes(long=True)
        add("recall", story_prompt(text, questions[0][0]), questions[0][1], "recall", 8)
    for town in sorted(TOWNS_NEVER_ASKED):
        for question, answer in world.town_questions(town):
            add("towns", town_prompt(question), answer, "towns", 8)
    while len(items["chat"]) < 200:
        messages, answers = world.chat()
        checked = [i for i, answer in enumerate(answers) if answer is not None]
        if checked:
            i = rng.choice(checked)
            prompt = render_chat(messages[:i], add_generation_prompt=True)
            add("chat", prompt, messages[i][1], "chat", 160, stop=())
    while len(items["text"]) < 100:
        items["text"].append({"prompt": world.story_document(long=rng.random() < 0.3)[0]})
    return items


def read_items(folder):
    """What --heldout wrote: task -> items."""
    return {path.stem: [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted(folder.glob("*.jsonl"))}


def is_right(task, text, answer):
    """Whether the continuation `text` answers an item; JSON must parse and be equal."""
    if task == "json":
        try:
            return json.loads(text) == json.loads(answer)
        except ValueError:
            return False
    return text.strip() == answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=(TRAIN, HELDOUT), default=TRAIN)
    parser.add_argument("--count", type=int, default=3, help="documents to print")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stories", type=int,
                        help="print so many stories instead, as JSON lines like those of eval/text.jsonl")
    parser.add_argument("--heldout", type=Path, help="write the held-out items into this folder instead")
    args = parser.parse_args()
    if args.heldout:
        args.heldout.mkdir(parents=True, exist_ok=True)
        for task, items in heldout_items().items():
            path = args.heldout / f"{task}.jsonl"
            path.write_text("".join(json.dumps(item) + "\n" for item in items))
            print(f"{path}: {len(items)} items")
        return
    world = World(args.split, random.Random(args.seed))
    if args.stories is not None:
        for _ in range(args.stories):
            print(json.dumps({"prompt": world.story_document(long=world.rng.random() < 0.3)[0]}))
        return
    for _ in range(args.count):
        print(document(world) + "\n" + "-" * 80)


if __name__ == "__main__":
    main()
