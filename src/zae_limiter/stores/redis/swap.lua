-- Replaces records if all of them are still what the writer last saw, without looking into them.
--
-- KEYS     the records
-- ARGV     for each record: the digest of what was seen, numbers, and the text that stands behind the kept bytes from
--          now on; then 'T' to be told the time
-- answer   = where all were replaced; else ! and the records, each after a zero byte, an empty text where there is none.
--          If asked for, seconds and microseconds of the server's clock stand behind the first character.
--
-- The numbers are how many bytes are kept; then, if there is more to say, the new expiry in seconds since the epoch (-
-- to keep it); then, unless all of the record was digested, how many bytes it has, how many of them are its head, how
-- many bytes of the text are its new head, and the first and the last byte of every row that goes, in their order. Then
-- the head and these rows were digested; the other rows stay behind the new head, and the rest of the text behind them.
-- Who adds or removes a row changes the head or the length.

local call, sub, concat = redis.call, string.sub, table.concat

-- What was digested of a record, the record after the swap, and its new expiry.
local function replace(record, numbers, text)
  local kept, expires, length, head, size = numbers(), numbers(), numbers(), numbers(), numbers()
  if not length then
    return record, sub(record, 1, kept) .. text, expires
  elseif #record ~= tonumber(length) then
    return 'another one'
  end
  local digested, parts, from = {sub(record, 1, head)}, {sub(record, 1, kept), sub(text, 1, size)}, head + 1
  for first in numbers do
    local last = numbers()
    digested[#digested + 1] = sub(record, first, last)
    parts[#parts + 1] = sub(record, from, first - 1)
    from = last + 1
  end
  parts[#parts + 1] = sub(record, from)
  parts[#parts + 1] = sub(text, size + 1)
  return concat(digested), concat(parts), expires
end

local stored, after, expiries, same = {}, {}, {}, true
for place = 1, #KEYS do
  local record, digest = call('GET', KEYS[place]) or '', ARGV[3 * place - 2]
  local numbers, text = ARGV[3 * place - 1], ARGV[3 * place]
  local digested
  if tonumber(numbers) then
    digested, after[place] = record, sub(record, 1, numbers) .. text
  else
    digested, after[place], expiries[place] = replace(record, string.gmatch(numbers, '[^ ]+'), text)
  end
  stored[place] = record
  same = same and redis.sha1hex(digested) == digest
end
local time = ''
if ARGV[#ARGV] == 'T' then
  local now = call('TIME')
  time = now[1] .. ' ' .. now[2]
end
if not same then
  return '!' .. time .. '\0' .. concat(stored, '\0')
end
for place, record in ipairs(after) do
  local expires = expiries[place] or '-'
  call('SET', KEYS[place], record, 'KEEPTTL')
  if expires ~= '-' then
    call('EXPIREAT', KEYS[place], #expires > 12 and '999999999999' or expires)
  end
end
return '=' .. time
