-- The holders of a name: one is in the record, several have keys of their own.

-- The only predicate of liveness, the twin of fencing.Holder.Live.
local function live(h)
  return now < h[EXPIRES_AT]
end

-- Returns how many permits a lease bears, its own included.
local function tolerates(h)
  return h[MODE] == EXCLUSIVE and 1 or h[LIMIT] == 0 and ANY_NUMBER or h[LIMIT]
end

-- Returns the fewest permits that one of the present holders bears.
local function tolerated()
  if record[HOLDERS] <= 1 then
    return sole_holder and tolerates(sole_holder) or ANY_NUMBER
  end
  return tonumber(call('zrange', prefix .. 'limits:' .. name, 0, 0, 'withscores')[2])
end

-- Returns the score among until of what a gateway has not confirmed.
local function unconfirmed_score(gateway)
  return -1 - (tonumber(sub(gateway, 1, 12), 16) or 0)
end

-- Returns the holder with a lease id, nil if there is none.
local function find_holder(lease)
  if not record or record[HOLDERS] == 0 then
    return nil
  elseif sole_holder then
    return sole_holder[LEASE] == lease and sole_holder or nil
  end
  local found = call('hget', prefix .. 'holders:' .. name, lease)
  return found and stream.read_holder(found) or nil
end

-- Keeps a holder as it is now.
local function put_holder(h)
  stream.tell(h)
  local written = write_lease(h)
  if sole_holder then
    return
  end
  call('zadd', prefix .. 'tokens:' .. name, h[TOKEN], h[LEASE])
  call('hset', prefix .. 'holders:' .. name, h[LEASE], written)
  call('zadd', prefix .. 'until:' .. name, h[PROVISIONAL] == 1 and unconfirmed_score(h[GATEWAY]) or h[EXPIRES_AT], h[LEASE])
  call('zadd', prefix .. 'limits:' .. name, tolerates(h), h[LEASE])
  clocks.note(h)
end

-- Returns slots in ascending order as a lease has them: see fencing.Slots.
local function slots_text(numbers)
  local ranges, n, i = {}, #numbers, 1
  while n > 1 and i <= n do
    local first = numbers[i]
    while numbers[i + 1] == numbers[i] + 1 do
      i = i + 1
    end
    ranges[#ranges + 1] = first == numbers[i] and fmt('%d', first) or fmt('%d-%d', first, numbers[i])
    i = i + 1
  end
  return concat(ranges, ',')
end

-- Returns the slots of a lease in ascending order.
local function slots_of(h)
  if h[SLOTS] == '' then
    return {h[SLOT] ~= NO_SLOT and h[SLOT] or nil}
  end
  local all = {}
  for first, last in string.gmatch(h[SLOTS], '(%d+)%-?(%d*)') do
    for slot = first + 0, last == '' and first + 0 or last + 0 do
      all[#all + 1] = slot
    end
  end
  return all
end

-- Tells whether one of the permits of a lease has a number. The twin of Holder.hasSlot.
local function has_slot(h, slot)
  for first, last in string.gmatch(h[SLOTS], '(%d+)%-?(%d*)') do
    if first + 0 <= slot and slot <= (last == '' and first or last) + 0 then
      return true
    end
  end
  return h[SLOTS] == '' and h[SLOT] == slot
end

-- Notes in the bitmap that slots, in ascending order, are taken, or are not any more.
local function mark_slots(numbers, taken)
  local key = prefix .. 'slots:' .. name
  if #numbers < 3 then
    for i = 1, #numbers do
      call('setbit', key, numbers[i], taken and 1 or 0)
    end
    return
  end
  local first, last, bits = math.floor(numbers[1] / 8), math.floor(numbers[#numbers] / 8), {}
  local were = call('getrange', key, first, last)
  for at = 1, last - first + 1 do
    bits[at] = byte(were, at) or 0
  end
  for i = 1, #numbers do
    local at, bit = math.floor(numbers[i] / 8) - first + 1, 2 ^ (7 - numbers[i] % 8)
    if taken ~= (math.floor(bits[at] / bit) % 2 == 1) then
      bits[at] = bits[at] + (taken and bit or -bit)
    end
  end
  for at = 1, #bits do
    bits[at] = string.char(bits[at])
  end
  call('setrange', key, first, concat(bits))
end

-- Deletes the keys of several holders.
local function delete_holder_keys()
  call('del', prefix .. 'holders:' .. name, prefix .. 'until:' .. name, prefix .. 'limits:' .. name, prefix .. 'tokens:' .. name, prefix .. 'slots:' .. name)
end

-- Returns the holder with a token, nil if there is none.
local function holder_with(t)
  if sole_holder or not record or record[HOLDERS] == 0 then
    return sole_holder and sole_holder[TOKEN] == t and sole_holder or nil
  end
  local exactly = fmt('%d', t)
  local found = call('zrangebyscore', prefix .. 'tokens:' .. name, exactly, exactly, 'limit', 0, 1)[1]
  return found and find_holder(found) or nil
end

local delay = {} -- what is done where there is a lock delay

-- Returns how many holders have one, until when nobody is granted the name, and, if that was set
-- while the clocks differed, when by either clock, and until when if the store's was wrong.
function delay.read()
  local all = {}
  for n in string.gmatch(record[DELAY], '%d+') do
    all[#all + 1] = tonumber(n)
  end
  return all[1] or 0, all[2] or 0, all[3] or 0, all[4] or 0, all[5] or 0
end

function delay.write(holders, till, set, sent, other)
  record[DELAY] = sent > 0 and fmt('%d:%d:%d:%d:%d', holders, till, set, sent, other) or holders + till > 0 and fmt('%d:%d', holders, till) or ''
end

-- Counts a holder that has one.
function delay.add()
  local holders, till, set, sent, other = delay.read()
  delay.write(holders + 1, till, set, sent, other)
end

-- Counts it no more: it has ended as is said; nothing is of one that is taken back. The twin of
-- step.delay.
function delay.remove(h, at, ended)
  local holders, till, set, sent, other = delay.read()
  if ended and ended ~= 'released' and h[PROVISIONAL] == 0 then
    local own = delay.after(h, at)
    other = max(sent > 0 and other or till, own + clocks.lead())
    till = max(till, own)
    set, sent = clocks.set_now()
  end
  delay.write(holders - 1, till, set, sent, other)
end

-- Returns until when nobody is granted the name after a lease that ends at an instant.
function delay.after(h, at)
  return at + h[LOCK_DELAY] * 1000
end

-- Forgets one that is over: it stays so if the clock is set back. The twin of Record.delayOver.
function delay.over()
  local holders = delay.read()
  delay.write(holders, 0, 0, 0, 0)
end

-- Puts right what was set while the clocks differed, and bounds it. See clocks.put_right.
function delay.put_right()
  local holders, till, set, sent, other = delay.read()
  if sent > 0 and clocks.was_wrong(set, sent) then
    till = other
  end
  delay.write(holders, min(till, now + MAX_LOCK_DELAY), 0, 0, 0)
end

-- Tells whether nobody may be granted the name, for the delay of a lease that has ended, or
-- may have: the step has not come to all of them. The twin of step.delayed.
function delay.lasts()
  local holders, till = delay.read()
  return now < till or more and holders > 0
end

local function add_holder(h)
  if h[PROVISIONAL] == 1 then
    add_entry(LEASE_ENTRY, h)
  end
  record[HOLDERS], record[EXTRA_PERMITS] = record[HOLDERS] + 1, record[EXTRA_PERMITS] + h[PERMITS] - 1
  if h[LOCK_DELAY] > 0 then
    delay.add()
  end
  if record[HOLDERS] == 1 then
    sole_holder = h
  elseif sole_holder then
    local other = sole_holder
    sole_holder = nil
    if not has_holder_keys then -- what is there is of a record that is gone
      delete_holder_keys()
    end
    has_holder_keys = true
    put_holder(other)
    mark_slots(slots_of(other), true)
  end
  put_holder(h)
  if not sole_holder then
    mark_slots(slots_of(h), true)
  end
end

-- Frees what a holder holds, whose lease has ended as is said; nothing is of one that is taken
-- back. The twin of step.freed and remove.
local function remove_holder(h, at, ended)
  local r = record
  r[ENDED_TOKEN] = max(r[ENDED_TOKEN], h[TOKEN])
  r[FORGET_AT] = max(r[FORGET_AT], clocks.latest(max(at + FORGET_AFTER, h[PROVISIONAL] == 0 and h[EXPIRES_AT] or 0)))
  if h[PROVISIONAL] == 1 then
    remove_entry(LEASE_ENTRY, h)
  end
  stream.untell(h)
  r[HOLDERS], r[EXTRA_PERMITS] = r[HOLDERS] - 1, r[EXTRA_PERMITS] - h[PERMITS] + 1
  if h[LOCK_DELAY] > 0 then
    delay.remove(h, at, ended)
  end
  sole_holder = nil
  if not has_holder_keys then
    return
  end
  call('zrem', prefix .. 'tokens:' .. name, h[LEASE])
  call('hdel', prefix .. 'holders:' .. name, h[LEASE])
  call('zrem', prefix .. 'until:' .. name, h[LEASE])
  call('zrem', prefix .. 'limits:' .. name, h[LEASE])
  mark_slots(slots_of(h), false)
  if r[HOLDERS] == 1 then -- its keys go when the record is written
    sole_holder = stream.read_holder(call('hget', prefix .. 'holders:' .. name, call('zrange', prefix .. 'tokens:' .. name, 0, 0)[1]))
  end
end

-- Returns the lowest slots that no holder has, the first of them and, of several, all as
-- text. The twin of step.slots.
local function free_slots(mode, limit, permits)
  if mode ~= SHARED or limit == 0 then
    return NO_SLOT, ''
  end
  local slots, free, n = prefix .. 'slots:' .. name, {}, 0
  if record[HOLDERS] > 1 then
    if call('bitcount', slots) ~= call('zcount', prefix .. 'limits:' .. name, '-inf', '(' .. ANY_NUMBER) + record[EXTRA_PERMITS] then
      error({err = 'a key of the name is gone'})
    elseif permits == 1 then
      return call('bitpos', slots, 0), ''
    end
    local bits, at = call('get', slots) or '', 0
    while n < permits do
      local taken = byte(bits, at + 1) or 0
      for bit = 0, taken < 255 and 7 or -1 do
        if n < permits and math.floor(taken / 2 ^ (7 - bit)) % 2 == 0 then
          n = n + 1
          free[n] = 8 * at + bit
        end
      end
      at = at + 1
    end
    return free[1], slots_text(free)
  end
  local taken, slot = {}, 0
  for _, held in ipairs(sole_holder and slots_of(sole_holder) or {}) do
    taken[held] = true
  end
  while n < permits do
    if not taken[slot] then
      n = n + 1
      free[n] = slot
    end
    slot = slot + 1
  end
  return free[1], slots_text(free)
end

-- Gives permits of a holder back, those with the highest slots, so that so many are left.
-- The twin of Holder.keep.
local function keep_permits(h, permits)
  local kept, back = {}, {}
  for i, slot in ipairs(slots_of(h)) do
    local list = i <= permits and kept or back
    list[#list + 1] = slot
  end
  if has_holder_keys then
    mark_slots(back, false)
  end
  record[EXTRA_PERMITS] = record[EXTRA_PERMITS] - (h[PERMITS] - permits)
  h[PERMITS], h[SLOTS] = permits, slots_text(kept)
end

-- Returns the holders with these lease ids as they are stored.
local function holders_stored(leases)
  local all = {}
  for i = 1, #leases, 500 do
    for _, found in ipairs(call('hmget', prefix .. 'holders:' .. name, spread(leases, i, min(i + 499, #leases)))) do
      all[#all + 1] = found
    end
  end
  return all
end

local function by_token(a, b)
  return a[TOKEN] < b[TOKEN]
end

-- Returns the holders with these lease ids, in order of grant.
local function holders_of(leases)
  local all = holders_stored(leases)
  for i = 1, #all do
    all[i] = stream.read_holder(all[i])
  end
  sort(all, by_token)
  return all
end
