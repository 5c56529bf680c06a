-- Guarded writes: all of them take effect if every guard holds, else none. A write without any change is a read.
--
-- KEYS     the records in the order of the writes, then the index and expiry sets that the writes name by position
-- ARGV[1]  the writes, a JSON list of the tokens of all of them; each is
--            kind      0 checks only, 1 changes, 2 deletes
--            index     the position in KEYS of the record's index set, its expiry set comes next; 0: no entry can change;
--                      negative: only if the record begins to expire
--            expires   seconds since the epoch; - keeps the expiry, 0 takes it away
--            how many guards, puts, adds and removes follow
--            attr, op, value (two for between, none for absent and present) per guard
--            attr, value per put; attr, amount per add; attr per remove
--            pk, sk, where there is an index
-- ARGV[2]  the instant in milliseconds by which records expire; '' leaves that to the server, and 'T' asks for its time
-- answer   the outcome (1 committed, 0 conflict, -1 an attribute that cannot be added to, -2 something that is no record),
--          then seconds and microseconds of the server's clock if asked for, then the records, each after a zero byte; an
--          empty text where there is none
--
-- A record is a string: a line break, then attr=value and a line break for each attribute. Values are JSON texts, in
-- which a line break cannot occur. Whole numbers are plain digits; Lua's doubles are exact up to 2^53, and what may lie
-- beyond is compared digit by digit and never added to.
-- An index entry is "n\0partition\0sort\0pk\0sk" (n = 1..4) or "0\0pk\0sk", all at score 0, so in the order of bytes.

local find, sub, byte, format, concat, call = string.find, string.sub, string.byte, string.format, table.concat, redis.call
local given, read = cjson.decode(ARGV[1]), 0
local now = tonumber(ARGV[2])

local function tokens()
  read = read + 1
  return given[read]
end

-- A record is looked into as it is, which takes longer the longer it is. One that a write says much of is taken apart
-- first: its attributes in their order, and their values.
local MUCH = 64
local function take_apart(text)
  local order, values, length = {}, {}, 1
  for attr, value in string.gmatch(text, '([^\n=]*)=([^\n]*)\n') do
    order[#order + 1], values[attr], length = attr, value, length + #attr + #value + 2
  end
  return length == #text and {order = order, values = values} or text -- as it is if a line is no attribute
end

local function join(record)
  if type(record) ~= 'table' then
    return record
  end
  local parts, values, last = {'\n'}, record.values, 1
  for _, attr in ipairs(record.order) do
    local value = values[attr]
    if value then
      parts[last + 1], parts[last + 2], parts[last + 3], parts[last + 4] = attr, '=', value, '\n'
      last, values[attr] = last + 4, nil -- one that was removed and put again is in the order twice
    end
  end
  return concat(parts)
end

-- The value of an attribute, and where its line begins and ends.
local function get(record, attr, from)
  if type(record) == 'table' then
    return record.values[attr]
  end
  local first, last = find(record, '\n' .. attr .. '=', from or 1, true)
  if first then
    local stop = find(record, '\n', last + 1, true)
    return sub(record, last + 1, stop - 1), first, stop
  end
end

-- The record with another value of an attribute, or without it.
local function set(record, attr, value)
  if type(record) == 'table' then
    if not record.values[attr] then
      record.order[#record.order + 1] = attr
    end
    record.values[attr] = value
    return record
  end
  local _, first, stop = get(record, attr)
  local line = value and attr .. '=' .. value .. '\n' or ''
  return first and sub(record, 1, first) .. line .. sub(record, stop + 1) or record .. line
end

-- A whole number that a double holds exactly, or nil.
local function exact(text)
  local number = tonumber(text)
  return number and number % 1 == 0 and (#text < 16 or format('%.0f', number) == text) and number
end

-- Below 0, 0 or above 0 like a - b; nil where they cannot be compared.
local function compare(a, b)
  local x, y = tonumber(a), tonumber(b)
  if not x or not y or x ~= y or (#a < 16 and #b < 16) then
    return x and y and x - y
  end
  local whole = '^%-?%d+$'
  if a == b or not (find(a, whole) and find(b, whole)) then
    return 0
  end
  local order = #a == #b and (a < b and -1 or 1) or #a - #b
  return x < 0 and -order or order
end

-- Read the guards off the tokens; whether all of them hold.
local function holds(record, count)
  local met = true
  for _ = 1, count do
    local attr, op = tokens(), tokens()
    if op == 'absent' then
      met = met and not record
    elseif op == 'present' then
      met = met and record
    else
      local low, high = tokens(), op == 'between' and tokens()
      local value = record and get(record, attr)
      if op == 'missing or <=' then
        value, op = value or record and low, '<='
      end
      if op == '=' then
        met = met and value == low and value ~= 'null'
      else
        local order = value and compare(value, low)
        local above = order and high and compare(value, high)
        met = met and order and (
          (high and order >= 0 and above and above <= 0)
          or (order < 0 and (op == '<' or op == '<='))
          or (order == 0 and (op == '<=' or op == '>='))
          or (order > 0 and (op == '>' or op == '>='))
        )
      end
    end
  end
  return met
end

-- Read the changes off the tokens; the record after them, or nil where an amount cannot be added.
local function changed(record, puts, adds, removes)
  local possible = true
  for _ = 1, puts do
    record = set(record, tokens(), tokens())
  end
  local done, from = '', 1 -- attributes mostly come in the order of the record: each goes on behind the one before
  for _ = 1, adds do
    local attr, amount = tokens(), tokens()
    local value, first, stop = get(record, attr, from)
    if not value and from > 1 then
      record, done, from = done .. sub(record, from), '', 1
      value, first, stop = get(record, attr)
    end
    local x, y = exact(value or '0'), exact(amount)
    local sum = x and y and x + y
    if not sum or sum > 9007199254740992 or sum < -9007199254740992 or sum - x ~= y then -- 2^53 + 1 looks like 2^53
      possible = false
    elseif first then
      done, from = done .. sub(record, from, first) .. attr .. '=' .. format('%.0f', sum), stop
    else
      record = set(record, attr, format('%.0f', sum))
    end
  end
  record = from > 1 and done .. sub(record, from) or record
  for _ = 1, removes do
    record = set(record, tokens())
  end
  return possible and record
end

-- A write: kind, index, what is stored, the record before and after, its new expiry, pk and sk.
local KIND, INDEX, STORED, OLD, NEW, EXPIRES, PK, SK = 1, 2, 3, 4, 5, 6, 7, 8
local writes, outcome, broken = {}, '1', false
for kind in tokens do
  local index, expires = tonumber(tokens()), tokens()
  local guards, puts, adds, removes = tokens(), tokens(), tokens(), tokens()
  local stored = redis.pcall('GET', KEYS[#writes + 1])
  if type(stored) == 'table' then
    if not find(stored.err, 'WRONGTYPE', 1, true) then
      return stored
    end
    stored = 'no string'
  end
  if stored and (byte(stored) ~= 10 or byte(stored, -1) ~= 10) then
    stored, broken = '\n', broken or kind ~= '2' -- whatever it is, it can be deleted
  end
  local ttl = stored and get(stored, 'ttl')
  if ttl and not tonumber(ttl) then
    ttl, broken = nil, broken or kind ~= '2'
  end
  local old = stored and not (now and ttl and ttl * 1000 <= now) and stored
  local before = old or '\n'
  if guards + puts + adds + removes > MUCH then
    before = take_apart(before)
  end
  if not holds(old and before, guards) then
    outcome = '0'
  end
  local new = changed(before, puts, adds, removes)
  if not new then
    outcome = outcome == '1' and '-1' or outcome
  elseif expires == '0' then
    new = set(new, 'ttl')
  elseif expires ~= '-' and not (old and ttl and compare(ttl, expires) >= 0) then
    new = set(new, 'ttl', expires)
  else
    expires = false
  end
  new = join(new)
  local pk, sk = index ~= 0 and tokens(), index ~= 0 and tokens()
  if index < 0 then
    index = old and not ttl and expires and expires ~= '0' and -index or 0
  end
  writes[#writes + 1] = {kind, index, stored, old, new, expires, pk, sk}
end

-- What becomes of the index; first what is added, then what goes.
local function indexing()
  local function entries(record, write)
    local tail = '\0' .. write[PK] .. '\0' .. write[SK]
    local found = {'0' .. tail}
    for n = 1, 4 do
      local partition = get(record, 'GSI' .. n .. 'PK')
      if partition then
        local plain = cjson.decode('[' .. partition .. ',' .. (get(record, 'GSI' .. n .. 'SK') or '""') .. ']')
        found[#found + 1] = n .. '\0' .. plain[1] .. '\0' .. plain[2] .. tail
      end
    end
    return found, cjson.encode({write[PK], write[SK], found})
  end

  local function list(write)
    local found, listed = entries(write[NEW], write)
    for _, entry in ipairs(found) do
      call('ZADD', KEYS[write[INDEX]], 0, entry)
    end
    local ttl = get(write[NEW], 'ttl')
    if ttl then
      call('ZADD', KEYS[write[INDEX] + 1], ttl, listed)
    end
  end

  local function unlist(write)
    local kept = {}
    if write[KIND] == '1' then
      local found, listed = entries(write[NEW], write)
      for _, entry in ipairs(found) do
        kept[entry] = true
      end
      kept[listed] = get(write[NEW], 'ttl')
    end
    local found, listed = entries(write[STORED], write)
    for _, entry in ipairs(found) do
      if not kept[entry] then
        call('ZREM', KEYS[write[INDEX]], entry)
      end
    end
    if not kept[listed] then
      call('ZREM', KEYS[write[INDEX] + 1], listed)
    end
  end
  return list, unlist
end

if broken then
  outcome = '-2'
end
local answer = {outcome}
if ARGV[2] == 'T' then
  local time = call('TIME')
  answer[1] = outcome .. ' ' .. time[1] .. ' ' .. time[2]
end
if outcome ~= '1' then
  for place, write in ipairs(writes) do
    answer[place + 1] = write[OLD] or ''
  end
  return concat(answer, '\0')
end

-- Something else at a key of the index is an error before anything is done.
local list, unlist
for _, write in ipairs(writes) do
  if write[INDEX] > 0 and not list then
    list, unlist = indexing()
    call('ZRANGEBYSCORE', KEYS[write[INDEX]], 1, 0)
    call('ZRANGEBYSCORE', KEYS[write[INDEX] + 1], 1, 0)
  end
end

-- What is refused when memory is short comes first, so that then nothing at all is done: SET and ZADD.
for place, write in ipairs(writes) do
  if write[KIND] == '1' then
    if write[EXPIRES] or not get(write[NEW], 'ttl') then
      call('SET', KEYS[place], write[NEW])
    else
      call('SET', KEYS[place], write[NEW], 'KEEPTTL')
    end
    if write[INDEX] > 0 then
      list(write)
    end
  end
end
for place, write in ipairs(writes) do
  local kind, expires = write[KIND], write[EXPIRES]
  if kind ~= '0' and write[INDEX] > 0 and write[STORED] then
    unlist(write)
  end
  if kind == '2' then
    call('DEL', KEYS[place])
  elseif kind == '1' and expires and expires ~= '0' and not now then
    call('EXPIREAT', KEYS[place], #expires > 12 and '999999999999' or expires) -- more than 30 000 years are refused
  end
  answer[place + 1] = kind == '1' and write[NEW] or kind == '0' and write[OLD] or ''
end
return concat(answer, '\0')
