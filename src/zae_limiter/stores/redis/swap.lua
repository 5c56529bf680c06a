-- Replaces records if all of them are still what the writer last saw, without looking into them.
--
-- KEYS     the records
-- ARGV     for each record: the digest of what was seen, how many of its bytes are kept, what stands behind them from
--          now on, its rows, what is appended, the new expiry in seconds since the epoch ('' to keep it);
--          then 'T' to be told the time
-- answer   = where all were replaced; else ! and the records, each after a zero byte, an empty text where there is none.
--          If asked for, seconds and microseconds of the server's clock stand behind the first character.
--
-- The rows of a record are '' if all of it was digested. Else they are numbers: how many bytes it has, how many of them
-- are its head, and the first and the last byte of every row that goes, in their order. Then the head and these rows
-- were digested; the other rows stay behind the new head. Who adds or removes a row changes the head or the length.

local call, sub, concat = redis.call, string.sub, table.concat

-- What was digested of a record, and the rows that stay.
local function divide(record, rows)
  local numbers = string.gmatch(rows, '%d+')
  if #record ~= tonumber(numbers()) then
    return 'another one'
  end
  local head = numbers()
  local digested, stay, from = {sub(record, 1, head)}, {}, head + 1
  for first in numbers do
    local last = numbers()
    digested[#digested + 1] = sub(record, first, last)
    stay[#stay + 1] = sub(record, from, first - 1)
    from = last + 1
  end
  stay[#stay + 1] = sub(record, from)
  return concat(digested), concat(stay)
end

local stored, staying, same = {}, {}, true
for place = 1, #KEYS do
  local record, first = call('GET', KEYS[place]) or '', 6 * place - 5
  local digested, stay = record, ''
  if ARGV[first + 3] ~= '' then
    digested, stay = divide(record, ARGV[first + 3])
  end
  stored[place], staying[place] = record, stay
  same = same and redis.sha1hex(digested) == ARGV[first]
end
local time = ''
if ARGV[#ARGV] == 'T' then
  local now = call('TIME')
  time = now[1] .. ' ' .. now[2]
end
if not same then
  return '!' .. time .. '\0' .. concat(stored, '\0')
end
for place = 1, #KEYS do
  local first = 6 * place - 4
  local head, expires = sub(stored[place], 1, ARGV[first]) .. ARGV[first + 1], ARGV[first + 4]
  call('SET', KEYS[place], head .. staying[place] .. ARGV[first + 3], 'KEEPTTL')
  if expires ~= '' then
    call('EXPIREAT', KEYS[place], #expires > 12 and '999999999999' or expires)
  end
end
return '=' .. time
