-- The places of a name: leases to be. The twin of fencing.Queue. EXPIRES_AT of one
-- that rests is when its rest ends, and 0 of a connected one.

-- Returns the place among the connected ones, from 1.
local function position(p)
  return call('zrank', prefix .. 'queue:' .. name, p[LEASE]) + 1
end

-- Puts a connected place where its seq belongs.
local function enter(p)
  local r = record
  p[EXPIRES_AT], p[SET_AT], p[SENT_AT] = 0, 0, 0
  call('hset', prefix .. 'places:' .. name, p[LEASE], write_lease(p))
  call('zadd', prefix .. 'queue:' .. name, p[SEQ], p[LEASE])
  r[QUEUE_LAST] = max(r[QUEUE_LAST], p[SEQ])
  r[QUEUED] = r[QUEUED] + 1
  add_entry(PLACE_ENTRY, p)
end

-- Puts a place that is not in the queue to rest.
local function rest(p)
  local r = record
  p[EXPIRES_AT] = now + REST_TTL
  p[SET_AT], p[SENT_AT] = clocks.set_now()
  call('hset', prefix .. 'places:' .. name, p[LEASE], write_lease(p))
  call('zadd', prefix .. 'resting:' .. name, p[EXPIRES_AT], p[LEASE])
  clocks.note(p)
  r[QUEUE_LAST] = max(r[QUEUE_LAST], p[SEQ])
  r[REST_TILL] = r[RESTING] == 0 and p[EXPIRES_AT] or min(r[REST_TILL], p[EXPIRES_AT])
  r[RESTING] = r[RESTING] + 1
end

-- Takes a place out, a connected one or one that rests.
local function remove_place(p, rests)
  local r = record
  call('hdel', prefix .. 'places:' .. name, p[LEASE])
  if rests then
    call('zrem', prefix .. 'resting:' .. name, p[LEASE])
    r[RESTING] = r[RESTING] - 1
    if r[RESTING] == 0 then
      r[REST_TILL] = 0
    end
  else
    call('zrem', prefix .. 'queue:' .. name, p[LEASE])
    r[QUEUED] = r[QUEUED] - 1
    remove_entry(PLACE_ENTRY, p)
  end
  if r[QUEUED] + r[RESTING] == 0 then
    r[QUEUE_LAST] = 0
  end
end

-- Returns the place of a lease id, connected or resting, nil if it has none. One
-- whose rest is over, which the step has not come to, is dropped before it is asked
-- about. The twin of step.findPlace.
local function find_place(lease)
  local r = record
  local found = r and r[QUEUED] + r[RESTING] > 0 and call('hget', prefix .. 'places:' .. name, lease)
  local p = found and read_lease(found) or nil
  if p and p[EXPIRES_AT] > 0 and not live(p) and not skewed then
    remove_place(p, true)
    return nil
  end
  return p
end

-- Returns the first of the connected places.
local function first_place()
  return find_place(call('zrange', prefix .. 'queue:' .. name, 0, 0)[1])
end

-- Drops places whose rest is over, those first that were over first. The twin of
-- step.wake.
local function wake()
  local r = record
  if r[RESTING] == 0 or now < r[REST_TILL] then
    return
  end
  local resting = prefix .. 'resting:' .. name
  local over = call('zrangebyscore', resting, '-inf', now, 'limit', 0, left + 1)
  if #over > left then
    more = true
    over[#over] = nil
  end
  left = left - #over
  if #over > 0 then
    call('hdel', prefix .. 'places:' .. name, spread(over))
    call('zrem', resting, spread(over))
  end
  r[RESTING] = r[RESTING] - #over
  r[REST_TILL] = r[RESTING] > 0 and tonumber(call('zrange', resting, 0, 0, 'withscores')[2]) + 0 or 0
  if r[QUEUED] + r[RESTING] == 0 then
    r[QUEUE_LAST] = 0
  end
end

-- Notes that a connected place has left the queue; it may rest. The twin of
-- step.departed.
local function departed(p)
  item(ITEM_LEFT, p[LEASE_TEXT])
  if p[KEEP] == 1 then
    rest(p)
  end
end

-- Takes a connected place out of the queue. The twin of step.depart.
local function depart(p)
  remove_place(p)
  departed(p)
end

local function by_seq(a, b)
  return a[1] < b[1] or a[1] == b[1] and a[2] < b[2]
end

-- Takes the waiters of dead gateways out, the first in the queue first. The twin
-- of step.dropDead. It reads no more than may be taken out, and one.
local function drop_dead()
  if record[QUEUED] == 0 then
    return
  end
  local found = {} -- their seqs and lease ids
  for id, g in pairs(gateway_counts) do
    if g.places > 0 and not alive(id) then
      local first, last = entries_of(PLACE_ENTRY)
      local entries = call('zrangebylex', prefix .. 'gateway:' .. id, first, last, 'limit', 0, left + 1)
      if #entries < min(g.places, left + 1) then
        unreadable(prefix .. 'gateway:' .. id)
      end
      for i = 1, #entries do
        found[#found + 1] = {unpack('>I7s', entries[i], #name + 3)}
      end
    end
  end
  if #found == 0 then
    return
  end
  sort(found, by_seq)
  more = more or #found > left
  local leases = {}
  for i = 1, min(#found, left) do
    leases[i] = found[i][2]
  end
  if #leases == 0 then
    return
  end
  left = left - #leases
  local removed = call('hmget', prefix .. 'places:' .. name, spread(leases))
  for i = 1, #removed do -- all, before one is taken out: one may be damaged
    removed[i] = read_lease(removed[i])
  end
  for i = 1, #removed do
    remove_place(removed[i])
  end
  for i = 1, #removed do
    departed(removed[i])
  end
end
