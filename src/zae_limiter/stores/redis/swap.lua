-- Replaces a record if it is still what the writer last saw of it, without looking into it.
--
-- KEYS[1]  the record
-- ARGV[1]  what it was
-- ARGV[2]  what becomes of it
-- ARGV[3]  its new expiry in seconds since the epoch, '' to keep it
-- ARGV[4]  'T' to be told the time
-- answer   = where it was replaced, else ! and the record, if there is one; then, if asked for, a zero byte, seconds
--          and microseconds of the server's clock

local stored = redis.call('GET', KEYS[1])
local answer = '!' .. (stored or '')
if stored == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
  if ARGV[3] ~= '' then
    redis.call('EXPIREAT', KEYS[1], #ARGV[3] > 12 and '999999999999' or ARGV[3])
  end
  answer = '='
end
if ARGV[4] ~= 'T' then
  return answer
end
local time = redis.call('TIME')
return answer .. '\0' .. time[1] .. ' ' .. time[2]
