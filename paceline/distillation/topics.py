"""Words that the built-in prompts are filled with: made up, or common knowledge."""

from __future__ import annotations


def _listed(text: str) -> tuple[str, ...]:
    """What stands between the bars, line breaks as spaces."""
    return tuple(" ".join(text.split()).split(" | "))


THINGS = _listed("""
    bicycles | volcanoes | honey | the human heart | earthquakes | solar panels | chess |
    coral reefs | bread baking | black holes | the Roman Empire | vaccines | coffee | the
    water cycle | elections | glass | wolves | inflation | the violin | recycling |
    batteries | tides | mushrooms | the French Revolution | dreams | soap | rainbows |
    antibiotics | bridges | penguins | compilers | tea ceremonies | gravity | public
    libraries | the Silk Road | migraines | databases | bamboo | taxes | opera | electric
    cars | glaciers | encryption | sharks | yoga | pottery | the periodic table | malaria |
    football | satellites | spiders | supply and demand | jazz | concrete | the immune
    system | maps | lightning | dinosaurs | search engines | olive oil | the Moon | sleep |
    windmills | the internet | chocolate | democracy | hurricanes | photography | ants |
    steel | the stock market | origami | whales | calendars | stress | deserts | the steam
    engine | insurance | fermentation | owls | paper | lasers | the Great Wall | friendship
    | neurons | rivers | radio | video games | rice | ballet | hydrogen | city planning |
    horses | evolution | perfume | magnets | swimming | dictionaries | the Olympic Games |
    cheese
""")

SKILLS = _listed("""
    change a bicycle tyre | learn a new language | bake a loaf of bread | save money every
    month | prepare for a job interview | plant tomatoes | clean a keyboard | train a puppy
    | write a short essay | sleep better | paint a room | remember names | start running |
    organise a bookshelf | make a budget | give a talk | fix a leaking tap | build a
    birdhouse | set up a home network | read more books | iron a shirt | make new friends in
    a new city | grow herbs on a balcony | draw a face | back up a computer | cook rice |
    tie a tie | pack a suitcase | meditate | study for an exam | choose a laptop | sew on a
    button | play the guitar | calm a crying baby | sharpen a knife | take good photographs
    | reduce food waste | debug a program | host a dinner | learn to swim
""")

NAMES = _listed("""
    Mara | Jonas | Amina | Pedro | Yuki | Elena | Tom | Priya | Lars | Chloe | Omar | Ingrid
    | Mateo | Ruth | Kwame | Sofia | Daniel | Leila | Viktor | Hannah | Chen | Rosa | Samuel
    | Nadia | Felix | Grace | Ivan | Maya | Paul | Zoe
""")

PLACES = _listed("""
    Lisbon | Bergen | Kyoto | Nairobi | Quebec | Valencia | Riga | Auckland | Cusco |
    Bristol | Hanoi | Ghent | Tromso | Seville | Porto | Galway | Zagreb | Oaxaca | Tallinn
    | Lyon | Cork | Izmir | Bern | Salvador | Utrecht | Malmo
""")

JOBS = _listed("""
    carpenter | nurse | sailor | violin maker | teacher | gardener | programmer | baker |
    judge | pilot | librarian | fisherman | dentist | farmer | detective | photographer |
    shopkeeper | engineer | painter | cook | postman | mountain guide | astronomer | tailor
    | bus driver | beekeeper
""")

OBJECTS = _listed("""
    a rusty key | a blue lantern | an old map | a silver whistle | a broken clock | a letter
    without a name | a wooden box | a red umbrella | a torn photograph | a tiny robot | a
    jar of sand | a golden button | a stray cat | a talking parrot | a forgotten suitcase |
    a paper boat | a music box | a strange seed | an empty notebook | a compass that points
    south
""")

FUNCTIONS = _listed("""
    reverses a string | checks whether a number is prime | counts the vowels in a text |
    sorts a list of pairs by the second element | finds the largest number in a list |
    removes duplicates from a list | converts Celsius to Fahrenheit | computes the factorial
    of a number | checks whether a word is a palindrome | merges two sorted lists | counts
    how often each word occurs | returns the sum of the digits of a number | finds the
    common elements of two lists | flattens a nested list | computes the greatest common
    divisor | validates an email address | reads a CSV file and returns its rows | computes
    the average of a list | rotates a list by k places | finds the longest word in a
    sentence | generates a random password | converts a number to binary | computes the area
    of a triangle | groups a list of words by their first letter | implements a stack |
    implements binary search | prints a multiplication table | checks whether a year is a
    leap year | removes all spaces from a text | transposes a matrix
""")

LANGUAGES = ("Python", "Python", "Python", "JavaScript", "Java", "C", "Go", "SQL")

TONGUES = ("French", "Spanish", "German", "Italian", "Portuguese")

SENTENCES = _listed("""
    The train to the coast leaves at nine in the morning. | We will meet in front of the
    museum on Sunday. | My sister has bought a small house near the lake. | The soup is too
    hot, so please wait a little. | He forgot his umbrella, and then it began to rain. | The
    children are playing in the garden with the dog. | I would like two cups of coffee and a
    piece of cake. | Our teacher told us a long story about the sea. | The shop on the
    corner is closed on Mondays. | She has worked as a doctor for twelve years. | The old
    bridge was repaired last summer. | Please send me the report before Friday. | The
    concert was so loud that we left early. | They are planning a trip to the mountains in
    June. | The museum shows paintings from three centuries. | Nobody knew where the key to
    the cellar was. | The new phone has a better camera and a longer battery life. | It
    snowed all night, and the road is closed. | My grandfather taught me how to repair
    clocks. | The meeting has been moved to Thursday afternoon. | The library lends books
    for four weeks. | We ran out of milk, so I went to the market. | The river is wide and
    slow near the town. | Her first novel was read all over the country. | The flight was
    late because of the fog. | I left my bag on the bus yesterday. | The neighbours grow
    beans and pumpkins. | He plays the piano every evening after dinner.
""")

MISTAKES = _listed("""
    She dont like apples but he do. | Me and him was going to the store yesterday. | The
    informations are very importants for us. | He have three childs and a dog. | I has been
    waiting since two hours. | Their going to they're house over there. | We was happy
    because the weather were good. | This is the more better solution. | The team are winned
    the game last night. | I didn't knew that you was coming. | Its a shame that the cat
    hurt it's paw. | Every students must brings there books. | He runned quick to catch the
    bus. | Yesterday I go to the market and buyed some fruits. | There is many peoples in
    the street. | She sing very good and dance to.
""")

FACTS = _listed("""
    What is the capital of Norway? | Who wrote Romeo and Juliet? | How many legs does a
    spider have? | What is the boiling point of water? | Which planet is closest to the Sun?
    | What do bees make? | When did the Second World War end? | What is the largest ocean? |
    Who painted the Mona Lisa? | What gas do plants take in? | How many days are there in a
    leap year? | What is the square root of 144? | Which metal is liquid at room
    temperature? | Where do kangaroos live? | What is the longest river in Africa? | What
    does DNA stand for? | Who was the first person on the Moon? | What is the currency of
    Japan? | How many players are in a football team? | What is the fastest land animal? |
    Which language has the most speakers? | What is a noun? | How far away is the Moon? |
    What is the main ingredient of bread? | Why is the sea salty? | What is the tallest
    mountain on Earth? | How do fish breathe? | What causes thunder? | What is the
    difference between weather and climate? | Why do leaves change colour in autumn? | What
    is a prime number? | How does a thermometer work?
""")
