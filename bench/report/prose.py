"""The prose around the page's tables."""

OPENING = """\
What a decision takes, beside other libraries, on the same machine in the same run. Less is better, but in the last row:
in a *crowd* more is asked for than the limit gives, and what was due was granted if no window got more than the bound
and at least 95 % of it was given out."""

METHOD = """\
`make bench` measures all of this in one run and writes `bench/results.json`, this page, its plots and the figures of
the README. Do not edit the page: change `bench/` and run it again, or `python -m bench.report` where nothing has to be
measured anew. `python -m bench llm growth` measures only these two sections again; their names are in
`bench/__main__.py`.

- **Same work.** Every limiter is asked the same through one adapter with one method, `take(key, cost)`. All share
  one redis-py and one Redis server on the same machine. A limit is a number per period with a capacity of the same
  number, so that buckets and windows promise the same. Where a limiter has a token bucket it is used; `limits` has
  windows only and takes part with its cheapest, the fixed one, and with its sliding window counter, which gives
  tokens back gradually as a bucket does.
- **Kinds of work.** *One limit*: 1 of a million a minute. *Two limits*: that and 500 of a billion a minute. *Over the
  limit*: 1 of 10 an hour that are gone. *1,000 keys* take turns on one limit each. *A new key each time* is asked for
  once. *32 callers at once*: tasks of one event loop on one key with two limits.
- **Time and CPU** are medians of many short rounds, everybody in turn in an order that changes, per decision. CPU
  is user and system time of the client's process. Behind HTTP they are those of a quiet round, and an import is the
  best of seven: what is left of them is small beside the noise.
- **Redis** counts the commands that it is sent (by `MONITOR`), bytes in and out and its own CPU (by `INFO`).
- **Oracle.** Whatever the algorithm, a limit of capacity c and rate r may grant c + r x w in a window of length w.
  Under more demand than that every grant is logged with the moments at which it was asked for and answered, and
  the worst of all windows counts; a window is as long as its grants can have taken, so slow answers accuse nobody.
  One token is tolerated. Less than 95 % of what was due, although somebody was refused, is under-admission.
- Two figures within 2 % of each other are level. Below that a rival is ahead, and the list says so."""

NEW_KEYS = "a new key each time"
PLOT = f"Without *{NEW_KEYS}*, which takes so much longer that the other bars could not be read."

RATIOS = "A rival's figure divided by ours: above 1 the rival needs more."

LLM = """\
A key under a project under an organisation, each with `rpm` and `tpm`: a call reserves 1 and an estimated 500, and
settles 130 when it ends. `limits` cannot settle; its figures are the hits that people write for such a call, two for
one level and six for three. Settled cases that name no number of levels have three, and are divided by the plain
call. *At most* is the bar: the largest ratio, or count, that we accept.

*Refused at the top*: the organisation has no tokens left. *A new key*: each call is its key's first. *With a second
writer*: another process makes calls of the same key without a pause."""

RESERVING = """\
These limiters do the same job: they reserve an estimate and settle it. They need Python 3.12, so ours runs beside
them there. Each is called as its documentation recommends; they have no hierarchy, so three levels are three
reservations. LLMRateLimiter keeps an entry for each call of the last minute, and its time grows with their number,
here up to 400.

*Cancelled*: 200 async calls reserve 10 of `tpm` each, use none, and are cancelled at a random moment between their
begin and their end; the figure is the part of these 2,000 that is still missing a second later. *Killed*: a process
dies while its call holds 10. *Longest wait*: up to six times, a process is killed while it makes calls, and another
asks for the same key until it is granted; the first wait of more than a second ends the series. LLMRateLimiter
refuses nothing; in its crowds, grants that took more than 20 ms count as refusals."""

BESIDE_LIMITS = """\
One level, never settled, beside the fixed window of `limits`, the cheapest limiter that it has. On Redis with
redis-py 7 and 8, each with and without hiredis, a parser written in C."""

GROWTH = """\
What an acquire takes as slots, levels or keys grow in number. A slot is taken and given back. *Server blocked* is the
run time of the longest script in Redis's slow log while one process renews its 4,000 slots; *another writer* takes
slots of the same key meanwhile. Keys take turns; calls are counted when each key is asked for a second time."""

CROWDS = """\
100 tokens a second with a capacity of 100. *Saturated*: everybody asks again at once for 1.5 s. *A burst after a
quiet time*: one grant, 0.8 s of quiet, then everybody for 0.5 s, so that a window of one second that began with the
grant ends within the burst: near its worst case, on purpose. A fixed window gives what it has at its start, so what
it has given depends on when one looks. One run each; whoever does not keep the bound may do otherwise in the next."""

LOSSES = """\
A hundred of `rpm`, and of `tpm` enough for five; 25 requests of 1 and 500. So many of `rpm` are gone for requests
that were refused:"""

DYNAMODB = """\
The reference is zae-limiter 0.17, by its public API, on the same local engine. Two limits, stored per entity. Time is
mostly the engine's. Write units follow from DynamoDB's billing rules, applied to the table before and after an
acquire. The crowd: 10 tokens a second with a capacity of 20; one process for 1.0 s after 2.5 s of quiet, and four
processes for 2.0 s."""

PREFETCH = """\
One key that is asked for again and again, of a limit that is never reached; each side in a process of its own, all in
turn. Every acquire is timed, after the key was asked for 0.6 s. *Prefetch* is `prefetch=0.5`: tokens are drawn in
advance, and most acquires ask nobody. Times are medians of those four of seven rounds that others have interrupted
least. Calls of the store and write units of DynamoDB are those per 1,000 decisions, background included. In *async*
other tasks of the loop have a turn after every fourth acquire, outside of the time that counts; a *tight loop* gives
them none."""

HTTP = """\
One limit by address in memory. CPU of the server per request over keep-alive sockets, and what of it the limiter
adds to the same app without one; `x ours` compares with ours as the rival is, with headers or without. A round is quiet
over sockets if nine of ten take longer; without a server it is the best of all."""
