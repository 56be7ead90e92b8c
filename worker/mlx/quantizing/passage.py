"""The text on which a model is measured before and after it is quantized. It was written for this
purpose, so that no model has seen it. This module is pure."""

from typing import Final

PASSAGE: Final = '''\
The lighthouse at Corran Head was built in the summer of 1871, after the third ship in two \
winters had gone onto the rocks below it. The engineer, a quiet man named Alder, had wanted \
granite, but the quarry across the bay could only promise sandstone before the autumn storms, \
and so the tower went up in sandstone, eleven courses a week, with a facing of hard brick on \
the seaward side. For the first thirty years nobody had reason to regret it. Then the wind \
began to take the mortar out of the joints, and every spring two men hung from ropes with \
buckets of lime and put back what the winter had carried off.

My grandmother was born in the keeper's house. She used to say that she had learned to count \
from the lamp, because it turned once in twelve seconds and her bed stood where the beam \
crossed the ceiling. When she could not sleep she counted to a hundred, which was twenty \
minutes, and if she was still awake at the end of it she was allowed to go down to the kitchen \
and sit with her father, who drank tea with the door open and listened to the sea. He claimed \
that he could hear fog before he could see it. She never found out whether that was true, but \
she believed it all her life, and so do I.

"Why did you leave?" I asked her once.

"Because they put in a motor," she said. "A motor does not need tea."

A short note on how the lamp worked may help here. The light itself was small: a burner with \
four rings of wick, fed with paraffin from a tank below the floor. What made it visible at \
eighteen miles was the lens around it, a cage of glass prisms as tall as a man. Each prism \
bends the light that falls on it a little, so that rays which would have gone up to the clouds \
or down to the rocks leave the tower level with the horizon. The whole cage floated in a \
trough of mercury, and a falling weight turned it, as in a clock. Every four hours somebody \
had to wind the weight up again. If it was forgotten, the beam stood still, and a ship's \
captain who counted the flashes to find out which light he was looking at would have counted \
wrong.

The same idea is used by engineers today: a signal is worth something only if it can be told \
from another signal. Consider a server that reports its health by sending the number 1 every \
second. When the number stops, has the server failed, or has the network? Nothing in the \
message says so. If it sends a counter instead, the reader can tell a lost message from a late \
one; if it also sends the time at which it was started, the reader can tell a server that was \
restarted from one that has been running all along. Here is a small function that does the \
reader's half of the work:

def judge(previous, current, now, patience=5.0):
    """Say what a heartbeat means, given the one before it."""
    if current is None:
        if previous is None:
            return "unknown"
        return "late" if now - previous.received < patience else "lost"
    if previous is None or current.started != previous.started:
        return "restarted"
    missing = current.count - previous.count - 1
    if missing > 0:
        return f"alive, but {missing} messages did not arrive"
    return "alive"

It has no loop and no clock of its own, which makes it easy to test. You give it two values \
and a time, and you look at the word that comes back. Most of the difficulty in such programs \
is not in the rules but in the places where somebody wrote the rule a second time and forgot \
one case.

Questions that visitors ask most often:

1. How high is the tower? It is 38 metres from the rock to the top of the lantern, and the \
light stands 61 metres above high water.
2. How many steps are there? There are 172, and then a ladder of nine rungs. Children under \
eight may climb the stairs but not the ladder.
3. Is the light still in use? Yes. Since 1994 it has been electric, and it is watched from an \
office 140 kilometres away. The old lens was kept, because nobody has made a better one.
4. When is it open? From the first of April to the end of October, every day except Tuesday, \
between ten and four o'clock. In bad weather the tower is closed, but the museum is not.
5. What does it cost? Adults pay 7.50, students 4.00, and a family with up to three children \
18.00.

If a class of 24 students and two teachers comes on a Thursday, the teachers are free and the \
students pay 24 times 4.00, which is 96.00 in all. Groups of more than twenty get a tenth off, \
so the school pays 86.40.

The rocks are older than anything else in this story. They were mud once, at the bottom of a \
warm shallow sea, and shells fell into the mud and were buried there. Over some millions of \
years the mud was pressed into shale, and the shale was folded when two plates of the earth's \
crust moved against each other, slowly, about as fast as a fingernail grows. The folds can be \
seen at low tide: dark bands that rise out of the sand, bend over, and go down again, like the \
edge of a rug that somebody has pushed against a wall. Where the bands are thin the sea has \
eaten them away and left pools, and in the pools live anemones, small green crabs, and a fish \
called the shanny, which can stay out of the water for hours under a wet stone.

Dear Mr Hallam,

Thank you for your letter of the 9th of March, and for the photographs. I have compared them \
with the plans in our archive, and I think that you are right: the small building to the left \
of the tower is not the oil store but the workshop that burned down in 1902. The oil store had \
a curved roof and no windows, for obvious reasons. I would be very glad if we could show two \
of the pictures in the exhibition next year. We would of course name your family as the owner, \
and we would return them by the end of November. Please let me know whether that suits you, \
and whether you would like to come to the opening on Saturday the 17th of May at three \
o'clock.

With kind regards,
Ines Okafor, for the Corran Head Trust

To make the keeper's bread, as it is still sold in the museum's café, take 500 grams of strong \
flour, 325 grams of water, 10 grams of salt and 5 grams of dry yeast. Mix them in a bowl until \
no dry flour is left, cover the bowl, and wait for half an hour. Then pull one edge of the \
dough up and fold it over the middle, turn the bowl a little, and do the same again until you \
have gone all the way around. Repeat this twice, each time after another half hour. Shape the \
dough into a ball, let it rise until it is nearly twice as large, and bake it in a closed pot \
at 240 degrees for thirty minutes, and without the lid for fifteen more. It keeps for four \
days, if nobody is hungry.

In the last winter before the motor came, the fog lasted for nine days. My great-grandfather \
wrote one line for each of them in the book that all keepers had to keep. The first says: "Fog \
from the south-west at 4 in the morning, horn begun." The next seven say only: "Fog. Horn." On \
the ninth day he wrote: "Fog lifted at noon. Saw the mainland, which is still there." The \
inspector who read the book in spring put a small mark beside that sentence, because remarks \
were not permitted, and then he added, in pencil: "Glad to hear it."
'''
