-- The holders of the name: one is in the record, several have keys of their own.

local holders = {
  ALL = t.prefix .. 'holders:' .. t.name, UNTIL = t.prefix .. 'until:' .. t.name,
  LIMITS = t.prefix .. 'limits:' .. t.name, SLOTS = t.prefix .. 'slots:' .. t.name,
}

-- Returns how many holders a lease bears, itself included.
function holders.tolerates(h)
  return h.mode == 'x' and 1 or h.limit == '0' and math.huge or tonumber(h.limit)
end

-- Returns the fewest holders that one of the present ones bears.
function holders.tolerate()
  local r = t.record
  if r.n <= 1 then
    return r.one and holders.tolerates(r.one) or math.huge
  end
  return tonumber(call('ZRANGE', holders.LIMITS, 0, 0, 'WITHSCORES')[2])
end

-- Returns the holder with a lease, nil if there is none.
function holders.find(lease)
  local r = t.record
  if not r or r.n == 0 then
    return nil
  end
  if r.one then
    return r.one.lease == lease and r.one or nil
  end
  local text = call('HGET', holders.ALL, lease)
  return text and record.parse(text) or nil
end

-- Keeps a holder as it now is, and returns it as text. A provisional one is also
-- written where its gateway asks for it.
function holders.put(h)
  local r, text = t.record, record.text_of(h)
  if h.provisional then
    call('HSET', t.prefix .. 'unconfirmed:' .. h.gateway, h.lease .. t.name, text)
  end
  if r.one then
    r.text = text
    return text
  end
  call('HSET', holders.ALL, h.lease, text)
  call('ZADD', holders.UNTIL, h.provisional and rank(h.gateway) or fmt('%.0f', h.expires_at), h.lease)
  call('ZADD', holders.LIMITS, holders.tolerates(h), h.lease)
  if h.slot ~= '-1' then
    call('ZADD', holders.SLOTS, h.slot, h.slot)
  end
  return text
end

-- The gateway of a provisional lease has nothing to confirm any more.
function holders.settled(h)
  call('HDEL', t.prefix .. 'unconfirmed:' .. h.gateway, h.lease .. t.name)
  record.count(h.gateway, 0, -1)
end

function holders.add(h)
  local r = t.record
  if h.provisional then
    record.count(h.gateway, 0, 1)
  end
  r.n = r.n + 1
  if r.n == 1 then
    r.one = h
  elseif r.one then
    local other = r.one
    r.one, r.text = false, ''
    holders.put(other)
  end
  return holders.put(h)
end

-- Frees what a holder holds. The twin of step.remove.
function holders.remove(h, at)
  local r = t.record
  r.ended = math.max(r.ended, tonumber(h.token))
  r.idle_since = math.max(r.idle_since, at, h.provisional and 0 or h.expires_at - FORGET_AFTER)
  if h.provisional then
    holders.settled(h)
  end
  r.n = r.n - 1
  if r.n == 0 then
    r.one, r.text = false, ''
    return
  end
  call('HDEL', holders.ALL, h.lease)
  if r.n == 1 then
    r.text = call('HVALS', holders.ALL)[1]
    r.one = record.parse(r.text)
    call('DEL', holders.ALL, holders.UNTIL, holders.LIMITS, holders.SLOTS)
    return
  end
  call('ZREM', holders.UNTIL, h.lease)
  call('ZREM', holders.LIMITS, h.lease)
  if h.slot ~= '-1' then
    call('ZREM', holders.SLOTS, h.slot)
  end
end

-- Returns the lowest slot that no holder has, -1 where there are none. The slots
-- below a taken one are all taken if its rank says so.
function holders.free_slot(mode, limit)
  local r = t.record
  if mode ~= 's' or limit == '0' then
    return '-1'
  end
  if r.n <= 1 then
    return r.one and r.one.slot == '0' and '1' or '0'
  end
  local low, high = 0, call('ZCARD', holders.SLOTS)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if tonumber(call('ZRANGE', holders.SLOTS, middle, middle)[1]) == middle then
      low = middle + 1
    else
      high = middle
    end
  end
  return fmt('%.0f', low)
end

-- Returns the holders with these leases, in order of grant.
function holders.of(leases)
  local all = {}
  for i = 1, #leases, 500 do
    for _, text in ipairs(call('HMGET', holders.ALL, unpack(leases, i, math.min(i + 499, #leases)))) do
      all[#all + 1] = record.parse(text)
    end
  end
  table.sort(all, function(a, b)
    return a.token < b.token
  end)
  return all
end
