-- Replaces records if all of them are still what the writer last saw, without looking into them.
--
-- KEYS     the records
-- ARGV     for each record: the digest of what was seen, how many of its bytes are kept,
--          what stands behind them from now on, the new expiry in seconds since the epoch ('' to keep it);
--          then 'T' to be told the time
-- answer   = where all were replaced; else ! and the records, each after a zero byte, an empty text where there is none.
--          If asked for, seconds and microseconds of the server's clock stand behind the first character.

local call, sub = redis.call, string.sub
local stored, same = {}, true
for place = 1, #KEYS do
  local record = call('GET', KEYS[place]) or ''
  stored[place] = record
  same = same and redis.sha1hex(record) == ARGV[4 * place - 3]
end
local time = ''
if ARGV[#ARGV] == 'T' then
  local now = call('TIME')
  time = now[1] .. ' ' .. now[2]
end
if not same then
  return '!' .. time .. '\0' .. table.concat(stored, '\0')
end
for place = 1, #KEYS do
  local first = 4 * place - 2
  call('SET', KEYS[place], sub(stored[place], 1, ARGV[first]) .. ARGV[first + 1], 'KEEPTTL')
  local expires = ARGV[first + 2]
  if expires ~= '' then
    call('EXPIREAT', KEYS[place], #expires > 12 and '999999999999' or expires)
  end
end
return '=' .. time
