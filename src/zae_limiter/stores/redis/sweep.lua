-- Takes records out of the index that have expired.
--
-- KEYS[1], KEYS[2]  the index set and the expiry set of a cell
-- KEYS[3], ...      the records that seem to have expired
-- ARGV[1]           the present instant in milliseconds, '' for the server's own clock
-- ARGV[2], ...      their members of the expiry set: JSON [pk, sk, [index entry, ...]]
-- answer            how many records were gone
--
-- A record whose expiry was put off meanwhile is noted under the new one.

local time = redis.call('TIME')
local now = ARGV[1] ~= '' and tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
local gone = 0
for place = 3, #KEYS do
  local member = ARGV[place - 1]
  local record = redis.pcall('GET', KEYS[place])
  local foreign = type(record) == 'table' -- something else is there, which is not ours to delete
  record = not foreign and record
  local ttl = record and string.match(record, '\nttl=(%d+)\n')
  if record and not ttl then
    redis.call('ZREM', KEYS[2], member)
  elseif record and ttl * 1000 > now then
    redis.call('ZADD', KEYS[2], 'XX', ttl, member)
  else
    redis.call('ZREM', KEYS[1], unpack(cjson.decode(member)[3]))
    redis.call('ZREM', KEYS[2], member)
    if not foreign then
      redis.call('DEL', KEYS[place])
    end
    gone = gone + 1
  end
end
return gone
