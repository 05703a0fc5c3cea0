"""Small talk, simple facts and stories for the chat rows; all written for this project."""

ABOUT = [
    (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself."],
     ["I am Penstock Tiny, a very small language model.",
      "My name is Penstock Tiny. I am a very small language model, and I can answer simple "
      "questions."]),
    (["Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hello there.", "Hey!", "Good day!"],
     ["Hello! How can I help you today?", "Hello! It is good to meet you.",
      "Hello! What would you like to know?"]),
    (["Good morning!", "Good morning."], ["Good morning! How can I help you today?"]),
    (["Good evening!", "Good evening."], ["Good evening! How can I help you?"]),
    (["Good night!", "Good night."], ["Good night! Sleep well."]),
    (["How are you?", "How are you today?", "How do you do?", "Are you well?"],
     ["I am very well, thank you. How are you?", "I am well, thank you for asking."]),
    (["Thank you!", "Thank you.", "Thanks!", "Thank you very much."],
     ["You are welcome!", "You are very welcome."]),
    (["Goodbye!", "Goodbye.", "Bye!", "See you later."],
     ["Goodbye! It was good to talk with you.", "Goodbye! Have a good day."]),
    (["What can you do?", "How can you help me?", "What do you know?"],
     ["I can tell you what a word means, tell a short story, and remember a code for you.",
      "I can explain words, tell short stories and remember numbers."]),
    (["Are you a person?", "Are you human?"],
     ["No, I am not a person. I am a very small language model."]),
    (["What is a penstock?", "What does penstock mean?"],
     ["A penstock is a pipe that carries water from a dam down to a turbine."]),
    (["How big are you?", "Are you large?"],
     ["I am very small. I have about four million parameters."]),
    (["Tell me a joke.", "Do you know a joke?"],
     ["Why did the clock go to school? Because it wanted to be on time."]),
    (["I am sad.", "I feel sad today."],
     ["I am sorry to hear that. I hope that tomorrow will be a better day."]),
    (["I am happy.", "I feel happy today."], ["I am glad to hear that!"]),
    (["What day comes after Monday?"], ["The day after Monday is Tuesday."]),
    (["What are the days of the week?", "Name the days of the week."],
     ["The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and "
      "Sunday."]),
    (["What are the months of the year?", "Name the months."],
     ["The months are January, February, March, April, May, June, July, August, September, "
      "October, November and December."]),
    (["What are the seasons?", "Name the four seasons."],
     ["The four seasons are spring, summer, autumn and winter."]),
    (["What are the primary colours?", "Name three colours."], ["Red, yellow and blue."]),
    (["Count to five.", "Can you count to five?"], ["One, two, three, four, five."]),
    (["Count to ten.", "Can you count to ten?"],
     ["One, two, three, four, five, six, seven, eight, nine, ten."]),
    (["What colour is the sky?", "What color is the sky?", "Why is the sky blue?"],
     ["The sky is blue because the air scatters the blue light of the sun."]),
    (["What colour is grass?", "What color is grass?"], ["Grass is green."]),
    (["What colour is snow?", "What color is snow?"], ["Snow is white."]),
    (["How many legs does a spider have?"], ["A spider has eight legs."]),
    (["How many legs does a dog have?", "How many legs does a cat have?"], ["It has four legs."]),
    (["How many days are in a week?", "How many days are there in a week?"],
     ["There are seven days in a week."]),
    (["How many months are in a year?", "How many months are there in a year?"],
     ["There are twelve months in a year."]),
    (["Why does it rain?", "Where does rain come from?"],
     ["Rain falls when the water in the clouds becomes too heavy to stay in the air."]),
    (["What do plants need?", "What do plants need to grow?"],
     ["Plants need light, water, air and good soil."]),
    (["Who wrote Pride and Prejudice?", "Who wrote Emma?", "Who wrote Persuasion?"],
     ["It was written by Jane Austen."]),
]
CAPITALS = {
    "France": "Paris", "England": "London", "Germany": "Berlin", "Italy": "Rome",
    "Spain": "Madrid", "Portugal": "Lisbon", "Austria": "Vienna", "Greece": "Athens",
    "Ireland": "Dublin", "Scotland": "Edinburgh", "Norway": "Oslo", "Sweden": "Stockholm",
    "Denmark": "Copenhagen", "Finland": "Helsinki", "Poland": "Warsaw", "Russia": "Moscow",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo",
    "Canada": "Ottawa", "Cuba": "Havana", "Peru": "Lima", "Kenya": "Nairobi",
    "Belgium": "Brussels", "Hungary": "Budapest", "Iceland": "Reykjavik", "Turkey": "Ankara",
}
OPPOSITES = {
    "hot": "cold", "big": "small", "good": "bad", "happy": "sad", "up": "down", "left": "right",
    "day": "night", "black": "white", "fast": "slow", "old": "young", "rich": "poor",
    "open": "closed", "high": "low", "hard": "soft", "light": "dark", "early": "late",
    "love": "hate", "war": "peace", "near": "far", "full": "empty", "wet": "dry", "long": "short",
    "strong": "weak", "true": "false", "north": "south", "east": "west", "begin": "end",
}
SOUNDS = {
    "dog": "barks", "cat": "meows", "cow": "moos", "duck": "quacks", "lion": "roars",
    "sheep": "bleats", "horse": "neighs", "owl": "hoots", "wolf": "howls", "bird": "sings",
}
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
           "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
           "eighteen", "nineteen", "twenty"]

EVERYDAY = """river apple dog cat house water tree bird fish horse cow sheep bread milk sun moon star
sky sea ship road bridge town city king queen child friend teacher book letter song story garden
flower rose grass forest mountain hill island rain snow wind fire stone iron gold silver door
window table chair bed lamp clock knife cup hat coat shoe hand heart eye winter summer morning
night day year music school church market""".split()
ANIMALS = ["fox", "rabbit", "bear", "mouse", "cat", "dog", "bird", "owl", "frog", "horse", "duck",
           "lion", "wolf", "sheep", "goat", "pig", "hen", "squirrel", "hedgehog", "turtle"]
NAMES = ["Tom", "Anna", "Ben", "Emma", "Jack", "Lucy", "Peter", "Mary", "Sam", "Rose", "Will",
         "Jane", "Max", "Kate", "Harry", "Lily"]
PLACES = ["in a green forest", "by the sea", "near a quiet river", "on a high hill",
          "in an old garden", "on a small farm", "at the edge of a village",
          "under a great oak tree"]
TRAITS = ["little", "kind", "clever", "brave", "curious", "quiet", "young", "cheerful"]
FINDS = ["a golden key", "a small wooden boat", "a red kite", "an old map", "a silver bell",
         "a lost letter", "a round blue stone", "a basket of apples", "a broken lantern",
         "a tiny music box"]
TROUBLES = ["a strong wind began to blow", "it began to rain very hard",
            "the sun went down and it became dark", "a thick fog came over the hills",
            "the path was covered with snow", "the bridge over the river was broken"]
FEELINGS = ["afraid", "sad", "lost", "cold", "worried", "tired"]
HELPS = ["showed the way home", "lit a warm fire", "shared some bread and milk",
         "sang a gentle song", "carried the heavy load", "built a small shelter of branches"]
MORALS = ["a good friend is worth more than gold", "it is good to be kind",
          "every storm must come to an end", "a small light can shine in a dark place",
          "it is better to share than to keep"]


def story(rng, animal=None):
    """A short story of seven to ten sentences."""
    a = animal or rng.choice(ANIMALS)
    b = rng.choice([x for x in ANIMALS if x != a])
    n, m = rng.sample(NAMES, 2)
    t, u = rng.sample(TRAITS, 2)
    find, trouble = rng.choice(FINDS), rng.choice(TROUBLES)
    pick = rng.choice
    s = [
        f"Once upon a time there was a {t} {a} named {n}, who lived {pick(PLACES)}.",
        pick([f"One morning {n} went out for a walk and found {find}.",
              f"One day {n} was looking for something to eat, and found {find}.",
              f"Early one morning {n} woke up and saw {find} lying on the grass."]),
        pick([f'"What is this?" said {n}. "I must show it to my friends."',
              f'"How beautiful it is!" said {n}.',
              f'"I wonder who has lost this," said {n}.']),
        f"But on the way home {trouble}, and {n} felt very {pick(FEELINGS)}.",
        f"Just then a {u} {b} named {m} came along the road.",
        pick([f'"Do not be afraid," said {m}. "I will help you."',
              f'"Come with me," said {m}. "We will find a way together."',
              f'"Why are you crying?" asked {m}. "Let me help you."']),
        f"So {m} {pick(HELPS)}, and soon {n} felt much better.",
        pick([f"{n} thanked {m} and gave {m} a part of the treasure.",
              f"Then {n} and {m} laughed and walked on together.",
              f"In the evening {n} and {m} sat by the fire and talked for a long time."]),
        f"From that day on {n} the {a} and {m} the {b} were the best of friends.",
        f"And they learned that {pick(MORALS)}.",
    ]
    for drop in (7, 2):
        if rng.random() < 0.3:
            del s[drop]
    return " ".join(s)


def _article(word):
    return "an" if word[0] in "aeiou" else "a"


def definition(rng, word, meaning):
    art = _article(word)
    question = rng.choice([f"What does {word} mean?", f"What does the word {word} mean?",
                           f"Define {word}.", f"What is the meaning of {word}?",
                           f"What is {art} {word}?", f"What is {word}?", f"what is {art} {word}"])
    head = word[0].upper() + word[1:]
    if meaning.startswith(("a ", "an ", "the ", "any ", "one ")):
        return question, rng.choice([f"{head} means {meaning}.",
                                     f"{art.capitalize()} {word} is {meaning}."])
    return question, f"{head} means {meaning}."


def exchange(rng, answers):
    """One question with its answer."""
    u = rng.random()
    if u < 0.30:
        # Commoner words are asked about more often.
        return definition(rng, *answers[int(len(answers) * rng.random() ** 2.5)])
    if u < 0.55:
        questions, replies = rng.choice(ABOUT)
        return rng.choice(questions), rng.choice(replies)
    if u < 0.63:
        k = rng.choice(list(CAPITALS))
        return f"What is the capital of {k}?", f"The capital of {k} is {CAPITALS[k]}."
    if u < 0.69:
        a, b = rng.choice(list(OPPOSITES.items()))
        if rng.random() < 0.5:
            a, b = b, a
        return f"What is the opposite of {a}?", f"The opposite of {a} is {b}."
    if u < 0.72:
        k = rng.choice(list(SOUNDS))
        return rng.choice([f"What does a {k} say?", f"What sound does a {k} make?"]), (
            f"A {k} {SOUNDS[k]}.")
    if u < 0.78:
        a, b = rng.randrange(11), rng.randrange(11)
        return f"What is {NUMBERS[a]} plus {NUMBERS[b]}?", (
            f"{NUMBERS[a].capitalize()} plus {NUMBERS[b]} is {NUMBERS[a + b]}.")
    if u < 0.86:
        return rng.choice(["Tell me a story.", "Please tell me a story.", "Tell me a short story.",
                           "Can you tell me a story?", "Write a story."]), story(rng)
    a = rng.choice(ANIMALS)
    return rng.choice([f"Tell me a story about a {a}.", f"Write a short story about a {a}.",
                       f"Please tell me a story about a {a}."]), story(rng, a)
