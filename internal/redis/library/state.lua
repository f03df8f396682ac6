-- What a call knows of the partition, and an operation of its name.

-- Of the call: the header, the clock, whether it differs from the gateway's by too
-- much, what the keys begin with, who asks, and what is left of the step's limit,
-- which all operations of the call share.
local header, now, skewed, prefix, me, budget
local counter, counted -- the highest token issued, as it is now and as it is stored; false until read
local guard, guard_changed -- nil until read, false if there is none
local signs -- of life, gateway -> when, false if there was none; nil until read
local heard, stopped, serving -- as in fencing.Gateways
local watched -- whether anybody hears of events; nil until asked
local events, outbox -- messages: to all who watch, and to gateways
local mend_flags -- flags of what was put right before the operation

-- Of the operation.
local op, op_text, name
local stored, record -- the record as it is stored and as it is now; false if nothing is remembered of the name
local was_held, indexed -- what the indexes say of it
local sole_holder -- the holder, if it is the only one
local ends -- there is an end among what has changed
local has_holder_keys -- the keys of several holders are there
local notices -- messages of this operation to gateways, three entries each: the gateway, a letter, an item
local gateway_counts -- gateway -> how many places and provisional leases it has on the name; nil where none has any
local left -- of the limit
local more -- something is due that is beyond the limit
local flags, number, token, text, present -- of the reply: see codec.go
local out -- the reply in pieces: its head, and then the letter and the text of each item
local joined -- the place that the request has just joined
local newly_claimed -- the lease that has just got its token by a claim
local noticed -- the lease that has just been given notice

-- Adds an item to the reply.
local function item(letter, it)
  local n = #out
  out[n + 1], out[n + 2] = letter, it
end

-- Adds an item to what another gateway is told when the operation has come to its end.
local function notify(gateway, letter, it)
  if gateway ~= me then
    notices = notices or {}
    notices[#notices + 1], notices[#notices + 2], notices[#notices + 3] = gateway, letter, it
  end
end

-- Breaks the operation off for a key that is not what it has to be.
local function unreadable(key, why)
  error({err = key .. " can't be read" .. (why and ': ' .. why or '')})
end

-- Reads a text of the partition; false where there is none.
local function partition_text(kind)
  local stored = attempt('get', prefix .. kind)
  if type(stored) == 'table' then
    unreadable(prefix .. kind, stored.err)
  end
  return stored
end

-- Returns the highest token issued.
local function highest()
  if not counter then
    counted = tonumber(partition_text('token') or 0) or unreadable(prefix .. 'token')
    counter = counted
  end
  return counter
end

-- Returns what the partition remembers in order to be careful, false if nothing.
local function load_guard()
  if guard == nil then
    local stored = partition_text('guard')
    guard = stored and {unpack(GUARD_FORMAT, stored)}
  end
  return guard
end

-- Counts a TTL as in use. The twin of Quarantine.note.
local function note(g, ttl)
  local began = now - now % TTL_PERIOD
  if began > g[GUARD_PERIOD] and not skewed then -- by a clock that may be wrong no period begins
    g[GUARD_BEFORE] = began == g[GUARD_PERIOD] + TTL_PERIOD and g[GUARD_TTL] or 0
    g[GUARD_PERIOD], g[GUARD_TTL], guard_changed = began, 0, true
  end
  if ttl > g[GUARD_TTL] then
    g[GUARD_TTL], guard_changed = ttl, true
  end
end

-- Returns for how long nothing new may be granted, us, 0 if that is not known, nil if
-- it may. The twin of step.quarantined.
local function quarantined()
  local g = load_guard()
  if not g or header[HEADER_SERVER] == '' or header[HEADER_SERVER] ~= g[GUARD_SERVER] then
    flags = flags .. FLAG_UNGUARDED
    return 0
  end
  local floor = header[HEADER_FLOOR]
  if floor > highest() and floor <= now + MAX_FLOOR_LEAD then
    flags = flags .. FLAG_BEHIND
    if header[HEADER_HEED_LOSS] == 1 then
      return 0
    end
  end
  local left = g[GUARD_UNTIL] - (skewed and min(now, header[HEADER_SENT]) or now)
  return left > 0 and left or nil
end

-- Reads the signs of life of this gateway and of those that are keys of some.
local function read_signs(some)
  local ids = {}
  if not signs then
    signs, ids = {}, {'heard', 'stopped', 'serving', me}
  end
  for id in pairs(some or {}) do
    if signs[id] == nil and id ~= me then
      ids[#ids + 1] = id
    end
  end
  if #ids == 0 then
    return
  end
  for i, at in ipairs(call('hmget', prefix .. 'gateways', spread(ids))) do
    signs[ids[i]] = at and tonumber(at)
  end
  if ids[1] == 'heard' then
    heard, stopped, serving = signs.heard or 0, signs.stopped or 0, signs.serving or 0
  end
end

-- Returns when a gateway counts as dead. The twin of Gateways.deadAt.
local function dead_at(id)
  local seen = signs[id] or 0
  local till = seen + GATEWAY_TTL
  return seen + STALL_AFTER > stopped and max(till, serving + GATEWAY_TTL) or till
end

local function alive(id)
  return id == me or now < dead_at(id)
end

-- Forgets the gateways of long ago: every run of one has a name of its own. Places that are
-- left to one are dropped as those of any dead gateway.
local function forget_gateways()
  local all = call('hgetall', prefix .. 'gateways')
  for i = 1, #all, 2 do
    local id = all[i]
    if #id == #me then
      signs[id] = tonumber(all[i + 1])
      if now >= max(signs[id] + FORGET_AFTER, dead_at(id)) then
        signs[id] = false
        call('hdel', prefix .. 'gateways', id)
        call('pexpire', prefix .. 'gateway:' .. id, FORGET_MS)
      end
    end
  end
end

-- Notes a sign of life of this gateway; with joins it has a waiter here from now on.
-- The twin of Gateways.hear and join.
local function hear(joins)
  read_signs()
  local changes = {}
  if now >= max(heard + STALL_AFTER, serving + GATEWAY_TTL) then
    stopped, serving = heard, now
    changes = {'stopped', stopped, 'serving', now}
  end
  local seen = signs[me]
  if seen and now >= seen + HEAR_INTERVAL or joins and not seen then
    signs[me], heard = now, now
    changes[#changes + 1] = me
    changes[#changes + 1] = now
  elseif now >= heard + HEAR_INTERVAL then
    heard = now
  else
    return
  end
  call('hset', prefix .. 'gateways', 'heard', now, spread(changes))
  if joins and not seen then
    forget_gateways()
  end
end

-- Returns what there is for a gateway on the name: a connected place, a lease that is not
-- confirmed, or one that hangs on a stream. Leases come first, streams last, and places of a
-- name are in the order of the queue.
local function entry_of(kind, h, stamp)
  return pack('>c1sI7ss', kind, name, h[SEQ], h[LEASE], stamp or h[STAMP])
end

-- Returns from where to where, in what there is for a gateway, all of a kind on the name is.
local function entries_of(kind)
  return '[' .. kind .. name .. '\0', '(' .. kind .. name .. '\1'
end

-- Counts what a gateway has on the name.
local function count(id, places, leases)
  gateway_counts = gateway_counts or {}
  local g = gateway_counts[id] or {places = 0, leases = 0}
  g.places, g.leases = g.places + places, g.leases + leases
  gateway_counts[id] = g.places + g.leases > 0 and g or nil
  if not next(gateway_counts) then
    gateway_counts = nil
  end
end

-- Notes what there is for a gateway from now on.
local function add_entry(kind, h)
  call('zadd', prefix .. 'gateway:' .. h[GATEWAY], 0, entry_of(kind, h))
  count(h[GATEWAY], kind == PLACE_ENTRY and 1 or 0, kind == LEASE_ENTRY and 1 or 0)
end

-- Notes what there is no more.
local function remove_entry(kind, h)
  call('zrem', prefix .. 'gateway:' .. h[GATEWAY], entry_of(kind, h))
  count(h[GATEWAY], kind == PLACE_ENTRY and -1 or 0, kind == LEASE_ENTRY and -1 or 0)
end

local stream = {} -- that a lease hangs on

-- Returns the stamp of the stream that the gateway of a lease is told of, '' if of none. The
-- twin of Holding.hangs.
function stream.of(h)
  return h[PROVISIONAL] == 0 and h[BREAK_AT] == 0 and h[ATTACHED] or ''
end

-- Reads a lease that is held, as read_lease does, and notes of which stream which gateway is
-- told.
function stream.read_holder(text, at)
  local h = read_lease(text, at)
  if h[ATTACHED] ~= '' then
    h.told, h.told_at = stream.of(h), h[GATEWAY]
  end
  return h
end

-- Has its gateway not be told any more that a lease hangs on a stream.
function stream.untell(h)
  if h.told and h.told ~= '' then
    call('zrem', prefix .. 'gateway:' .. h.told_at, entry_of(STREAM_ENTRY, h, h.told))
  end
  h.told = nil
end

-- Has gateways be told of the stream that a lease hangs on now, and of none that it hung on.
function stream.tell(h)
  local is = stream.of(h)
  if is == (h.told or '') and (is == '' or h.told_at == h[GATEWAY]) then
    return
  end
  stream.untell(h)
  if is ~= '' then
    if h[SEQ] == 0 then -- it never waited; see remembered_since
      h[SEQ] = max(record[BORN], now) + 1
    end
    h.told, h.told_at = is, h[GATEWAY]
    call('zadd', prefix .. 'gateway:' .. h.told_at, 0, entry_of(STREAM_ENTRY, h, is))
  end
end

-- Begins to remember a name.
local function new_record()
  record = RECORD_EMPTY
  record[BORN] = now
end

-- Reads who has something on the name.
local function read_gateways()
  gateway_counts = {}
  for id, places, leases in string.gmatch(record[GATEWAYS], '(%w+):(%d+):(%d+);') do
    gateway_counts[id] = {places = tonumber(places), leases = tonumber(leases)}
  end
  read_signs(gateway_counts)
end

-- Breaks the operation off where a key of several holders was evicted or deleted, and
-- before one of them is written where one of the queue was: see mend. Of a lone holder
-- nothing is written before all else was done.
local function check_keys()
  local gone = call('exists', prefix .. 'holders:' .. name, prefix .. 'until:' .. name, prefix .. 'limits:' .. name, prefix .. 'tokens:' .. name) < 4
  if gone or record[QUEUED] > 0 and call('exists', prefix .. 'places:' .. name, prefix .. 'queue:' .. name) < 2 then
    error({err = 'a key of the name is gone'})
  end
end

-- Reads what the indexes say of the name.
local function read_indexed()
  was_held, indexed = record[HOLDERS] > 0, record[INDEXED]
  if indexed == 0 and sole_holder then
    indexed = sole_holder[EXPIRES_AT]
  end
end

-- Reads the record of the name.
local function load_record()
  stored = call('get', prefix .. 'lock:' .. name)
  if not stored then
    return
  end
  record = read_record(stored)
  if record[HOLDERS] == 1 then
    sole_holder = stream.read_holder(stored, record[RECORD_SIZE + 1])
  elseif record[HOLDERS] > 1 then
    has_holder_keys = true
    check_keys()
  end
  if record[GATEWAYS] ~= '' then
    read_gateways()
  end
  read_indexed()
end

-- Returns how long a key is kept, ms, and not less than the least, in ms as text. It ends
-- by itself only as late garbage collection: what is in it says until when it counts.
local function keep_ms(us, least, least_ms)
  return us <= least and least_ms or fmt('%d', math.ceil(us / 1000))
end

-- Tells whether the name has neither holder nor place. The twin of Record.idle.
local function idle()
  return record[HOLDERS] + record[QUEUED] + record[RESTING] == 0
end
