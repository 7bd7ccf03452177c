"""The words of the small world. Order matters: the fixed facts about towns are drawn from these lists by a seed."""

WOMEN = """Ada Agnes Alma Amina Anna Astrid Bea Carla Cora Dalia Daria Edith Elena Elsa Emma Enid Erika Esther Fern
Fiona Freya Greta Hana Hazel Helga Ida Ines Ingrid Irma Ivy Jana Jia Joan Judith Kaya Kirsten Lara Lena Lila Lotte
Lucia Mabel Maja Mara Marta Mei Mila Mina Nadia Nell Nora Olga Olive Paula Petra Priya Rita Rosa Ruth Sana Sigrid
Sofia Tara Thea Tilda Uma Vera Wanda Yara Zelda""".split()
MEN = """Abel Adam Albin Amos Anton Arno Basil Bruno Cato Cedric Clem Dario David Edgar Egon Elias Emil Erik Felix
Finn Franz Gael Georg Gus Hamid Hans Hugo Igor Ivan Jakob Jonas Josef Karl Kenji Knut Lars Leo Levi Lorenz Luca
Magnus Malik Marco Max Milo Nils Noah Odin Omar Oskar Otto Pablo Paul Pavel Quentin Rafi Ralf Remy Rolf Rufus Samir
Sven Tariq Theo Tom Ulf Viktor Walter Yusuf Zeno""".split()
ONSETS = "b br ch d dr f g gr h j k kl l m n p r s sh st t tr v w z".split()
VOWELS = "a e i o u ai ei ou".split()
CODAS = ["", "", "l", "m", "n", "r", "s", "th", "nd", "k"]

TOWN_HEADS = """Old New Ash Birch Black Bright Cold Crow East Elm Fair Fox Glen Gold Green Grey Hart High Holm Iron
King Lake Long Low Marsh Mill Moss North Oak Pine Raven Red Rose Salt Sand Silver Stone Swan Thorn West White Wind
Wolf""".split()
TOWN_TAILS = "ford bridge field haven mouth ton wick dale port burg stead brook".split()
RIVERS = """Tane Orla Wend Isk Marrow Luth Savi Brenn Calder Dove Ember Firth Garra Hollin Irwe Jarl Kesh Lorn Mire
Neth""".split()
GOODS = """apples barley bells boats bread bricks butter candles carpets cheese clocks coal copper fish glass gloves
honey lamps lace maps nails oil paper pears pots ropes salt ships silk soap stone tea tin wine wool""".split()

JOBS = """baker barber bookbinder brewer bricklayer butcher carpenter clockmaker cobbler cook cooper dancer doctor
dyer farmer ferryman fiddler fisher gardener glassblower goldsmith guard hatter hunter innkeeper jeweller judge
lawyer librarian locksmith mason merchant midwife miller miner nurse painter piper pilot poet potter printer sailor
saddler scribe shepherd singer smith surveyor tailor tanner teacher thatcher tinker weaver""".split()
COLOURS = """amber black blue brown copper crimson golden green grey ivory orange pink purple red silver violet white
yellow""".split()
THINGS = """anchor apron axe bag ball barrel basket bell blanket boat book bottle bowl box brush bucket button candle
cap carpet cart chair chest clock cloak coat coin compass cup curtain door drum fan feather fiddle flag flute fork
glove hammer hat helmet hook horn jar jug kettle key kite knife ladder lamp lantern mask mirror mug needle net paddle
pan pen pipe pitcher pot purse ribbon ring rope saddle sail scarf shield shoe shovel spade spoon stool sword table tent
thimble trunk vase wagon whistle""".split()
ANIMALS = """cat crow dog donkey duck ferret fox frog goat goose hare hawk hedgehog hen horse lamb lizard mouse otter owl
parrot pig pony rabbit raven snail sparrow squirrel swan toad tortoise""".split()
PET_NAMES = """Biscuit Bramble Button Clover Cricket Dusty Ember Fidget Flint Ginger Hazelnut Inky Jasper Juniper
Loki Maple Marble Midnight Mossy Mustard Nettle Nutmeg Pebble Pepper Pickle Pip Pudding Rusty Scout Shadow Smudge
Snowy Sorrel Speckle Sprout Tansy Thistle Tiggy Toffee Truffle Tulip Waffle Whisker Willow Ziggy""".split()
FOODS = """apple pie|barley soup|bean stew|black bread|blue cheese|boiled eggs|cabbage rolls|carrot cake|cherry tart|
chestnut soup|corn bread|cream buns|fish pie|fried onions|garlic bread|ginger cake|goat cheese|grilled trout|
hazelnut cake|honey cake|lemon tart|lentil soup|mushroom pie|mutton stew|nut bread|oat cakes|onion soup|pea soup|
pear jam|pickled beets|plum cake|poppy rolls|potato pie|pumpkin soup|rhubarb tart|rice pudding|roast duck|rye bread|
salted fish|seed cake|smoked eel|spice buns|turnip stew|walnut bread""".replace("\n", "").split("|")
SPOTS = """bakery barn bridge cellar chapel courtyard fair fountain garden gate harbour hill inn kitchen library market
meadow mill orchard quay school square stable station tower well wood workshop""".split()
MOODS = """angry bored calm careful cheerful cold curious dizzy eager gentle glad gloomy grateful happy hungry lonely
lucky merry nervous patient proud quiet restless sad shy sleepy sober stubborn surprised thirsty tired worried""".split()
WEATHERS = """bright chilly clear cloudy cold damp dark dry foggy frosty grey hot misty muggy pale rainy snowy stormy
sunny warm wet windy""".split()
TIMES = """at dawn|after lunch|before supper|in the morning|in the evening|at noon|late at night|on market day|
on the first day of spring|in the middle of winter|one autumn day|last week|on Monday|on Tuesday|on Wednesday|on Thursday|
on Friday|on Saturday|on Sunday|long ago|that summer|the next day""".replace("\n", "").split("|")
SOUNDS = """barking bells dripping drums footsteps geese hammering hoofbeats humming knocking laughter music rain
shouting singing thunder whistling wind""".split()
VERBS_PAST = """cleaned counted drew dropped fixed found hid kept lent lost mended painted polished repaired sharpened
sold washed wrapped""".split()
PLAIN_WORDS = """acorn arrow autumn bark beach berry bird blossom branch breeze bronze cabin canal castle cave cellar
chalk cherry circle cliff cloud clover coast comet coral corner cotton creek crown crystal dawn desert diamond dream
dust eagle echo edge engine fabric falcon feast fence fever finger flame flower forest fossil frost fruit ghost giant
glacier grain grape gravel guitar harvest hazel heart hollow horizon island jacket jungle kernel kitten lagoon lemon
letter lily linen lion magnet marble melon meteor monkey moon morning mountain needle nickel novel oasis ocean olive
orchid oyster palace panther pearl pebble pepper petal piano pillow pirate planet pocket pollen prairie prism puzzle
quartz quiver rabbit rainbow reef ribbon ripple river rocket root saffron satin season seed shadow shell shore signal
sketch smoke spark spice spiral spring statue steam storm stream summit sunset syrup temple thread thunder ticket tiger
timber torch trail tunnel turtle valley velvet village violin volcano walnut wave whale willow winter wizard yarn
zebra""".split()
