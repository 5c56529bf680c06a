-- Guarded writes: all of them take effect if every guard holds, else none. A write without any change is a read.
--
-- KEYS     the records in the order of the writes, then the index and expiry sets that the writes name by position
-- ARGV[1]  the writes as JSON: [guards, put, add, remove, expires, kind, index, pk, sk] each
--            guards   [[attr, op, value, value], ...]
--            put      [attr, value, ...], add [attr, amount, ...], remove [attr, ...]
--            expires  seconds since the epoch; '' keeps the expiry, '0' takes it away
--            kind     0 checks only, 1 changes, 2 deletes
--            index    the position in KEYS of the record's index set, its expiry set comes next; 0: no entry can change
-- ARGV[2]  the present instant in milliseconds, '' for the server's own clock
-- answer   JSON: [1 committed | 0 conflict | -1 not a number, seconds, microseconds, record | null, ...]
--
-- A record is a hash. Values are JSON texts, so whole numbers are plain digits: they are added by HINCRBY and compared
-- digit by digit beyond 15 of them, never as Lua's doubles. An empty record holds the one field ''.
-- An index entry is "n\0partition\0sort\0pk\0sk" (n = 1..4) or "0\0pk\0sk", all at score 0, so in the order of bytes.

local writes = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = ARGV[2] ~= '' and tonumber(ARGV[2]) or time[1] * 1000 + math.floor(time[2] / 1000)

local function is_number(text)
  local first = string.byte(text)
  return first == 45 or (first >= 48 and first <= 57)
end

local function is_whole(text)
  return string.find(text, '^%-?%d+$')
end

-- Negative, 0 or positive like a - b; nil where they cannot be compared.
local function compare(a, b)
  if not (is_number(a) and is_number(b)) then
    return nil
  end
  if (#a < 16 and #b < 16) or not (is_whole(a) and is_whole(b)) then
    return tonumber(a) - tonumber(b)
  end
  local below_a, below_b = string.byte(a) == 45, string.byte(b) == 45
  if below_a ~= below_b then
    return below_a and -1 or 1
  end
  local order = #a - #b
  if order == 0 and a ~= b then
    order = a < b and -1 or 1
  end
  return below_a and -order or order
end

local function is_met(value, op, low, high)
  if op == '=' then
    return value == low and value ~= 'null'
  end
  local order = compare(value, low)
  if not order then
    return false
  elseif op == '<' then
    return order < 0
  elseif op == '<=' then
    return order <= 0
  elseif op == '>' then
    return order > 0
  elseif op == '>=' then
    return order >= 0
  end
  local above = compare(value, high)
  return order >= 0 and above ~= nil and above <= 0
end

local function holds(record, guards)
  for _, guard in ipairs(guards) do
    local op, value = guard[2], record and record[guard[1]]
    if op == 'absent' then
      if record then
        return false
      end
    elseif op == 'present' then
      if not record then
        return false
      end
    elseif not value or not is_met(value, op, guard[3], guard[4]) then
      return false
    end
  end
  return true
end

-- The record as a table and as the flat list that Redis gave; one that has expired comes third, and counts as absent.
local function load(key)
  local flat = redis.call('HGETALL', key)
  if #flat == 0 then
    return nil, nil
  end
  local record = {}
  for place = 1, #flat, 2 do
    record[flat[place]] = flat[place + 1]
  end
  if record.ttl and record.ttl * 1000 <= now then
    return nil, nil, record
  end
  return record, flat
end

-- Whether every amount can be added; if not, nothing may be written.
local function can_add(record, put, add)
  for place = 1, #add, 2 do
    local value = record and record[add[place]]
    for other = 1, #put, 2 do
      if put[other] == add[place] then
        value = put[other + 1]
      end
    end
    if #add[place + 1] > 18 or (value and (#value > 18 or not is_whole(value))) then
      return false
    end
  end
  return true
end

local function after(record, put, remove)
  local new = {}
  for attr, value in pairs(record or {}) do
    new[attr] = value
  end
  for place = 1, #put, 2 do
    new[put[place]] = put[place + 1]
  end
  for _, attr in ipairs(remove) do
    new[attr] = nil
  end
  return new
end

local function entries(record, pk, sk)
  local found = {'0\0' .. pk .. '\0' .. sk}
  for n = 1, 4 do
    local partition, sort = record['GSI' .. n .. 'PK'], record['GSI' .. n .. 'SK']
    if partition then
      local plain = cjson.decode('[' .. partition .. ',' .. (sort or '""') .. ']')
      found[#found + 1] = n .. '\0' .. plain[1] .. '\0' .. plain[2] .. '\0' .. pk .. '\0' .. sk
    end
  end
  return found
end

-- What is refused when memory is short comes first, so that nothing at all is done then: HSET, HINCRBY, ZADD.
local function grow(key, write, record, expired)
  local _, put, add, remove, expires, _, index, pk, sk = unpack(write)
  if expired then
    redis.call('DEL', key)
  end
  if expires ~= '' and expires ~= '0' and not (record and record.ttl and compare(record.ttl, expires) >= 0) then
    put[#put + 1] = 'ttl'
    put[#put + 1] = expires
    write.expires = expires
  end
  if #put > 0 then
    redis.call('HSET', key, unpack(put))
  elseif not record and #add == 0 then
    redis.call('HSET', key, '', '')
  end
  for place = 1, #add, 2 do
    redis.call('HINCRBY', key, add[place], add[place + 1])
  end
  if index > 0 then
    local new = after(record, put, remove)
    write.entries = entries(new, pk, sk)
    for _, entry in ipairs(write.entries) do
      redis.call('ZADD', KEYS[index], 0, entry)
    end
    if new.ttl and expires ~= '0' then
      write.listed = cjson.encode({pk, sk, write.entries})
      redis.call('ZADD', KEYS[index + 1], new.ttl, write.listed)
    end
  end
end

-- The index entries that the record no longer has.
local function unlist(write, record)
  local index, pk, sk = write[7], write[8], write[9]
  if index == 0 or not record then
    return
  end
  local old = entries(record, pk, sk)
  local kept = {}
  for _, entry in ipairs(write.entries or {}) do
    kept[entry] = true
  end
  for _, entry in ipairs(old) do
    if not kept[entry] then
      redis.call('ZREM', KEYS[index], entry)
    end
  end
  local listed = cjson.encode({pk, sk, old})
  if record.ttl and listed ~= write.listed then
    redis.call('ZREM', KEYS[index + 1], listed)
  end
end

local function shrink(key, write, record)
  local remove, expires, kind = write[4], write[5], write[6]
  unlist(write, record)
  if kind == 2 then
    redis.call('DEL', key)
    return
  end
  if expires == '0' then
    redis.call('HDEL', key, 'ttl')
    redis.call('PERSIST', key)
  elseif write.expires and ARGV[2] == '' then
    redis.call('EXPIREAT', key, write.expires)
  end
  if #remove > 0 then
    redis.call('HDEL', key, unpack(remove))
    if redis.call('EXISTS', key) == 0 then
      redis.call('HSET', key, '', '')
    end
  end
end

local function answer(status, flats)
  local parts = {status, time[1], time[2]}
  for place = 1, #writes do
    parts[#parts + 1] = flats[place] and cjson.encode(flats[place]) or 'null'
  end
  return '[' .. table.concat(parts, ',') .. ']'
end

local records, flats, expired = {}, {}, {}
local status = 1
for place, write in ipairs(writes) do
  records[place], flats[place], expired[place] = load(KEYS[place])
  if not holds(records[place], write[1]) then
    status = 0
  end
end
if status == 0 then
  return answer(0, flats)
end
for place, write in ipairs(writes) do
  if not can_add(records[place], write[2], write[3]) then
    return answer(-1, flats)
  end
end
for place, write in ipairs(writes) do
  if write[6] == 1 then
    grow(KEYS[place], write, records[place], expired[place])
  end
end
for place, write in ipairs(writes) do
  if write[6] > 0 then
    shrink(KEYS[place], write, records[place] or expired[place])
    flats[place] = write[6] == 1 and redis.call('HGETALL', KEYS[place]) or nil
  end
end
return answer(1, flats)
