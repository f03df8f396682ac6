-- The holders of a name: one is in the record, several have keys of their own.

-- The only predicate of liveness, the twin of fencing.Holder.Live.
local function live(h)
  return now < h[EXPIRES_AT]
end

-- Returns how many holders a lease bears, itself included.
local function tolerates(h)
  return h[MODE] == EXCLUSIVE and 1 or h[LIMIT] == 0 and ANY_NUMBER or h[LIMIT]
end

-- Returns the fewest holders that one of the present ones bears.
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
  return found and read_lease(found) or nil
end

-- Keeps a holder as it is now.
local function put_holder(h)
  local written = write_lease(h)
  if sole_holder then
    return
  end
  call('zadd', prefix .. 'tokens:' .. name, h[TOKEN], h[LEASE])
  call('hset', prefix .. 'holders:' .. name, h[LEASE], written)
  call('zadd', prefix .. 'until:' .. name, h[PROVISIONAL] == 1 and unconfirmed_score(h[GATEWAY]) or h[EXPIRES_AT], h[LEASE])
  call('zadd', prefix .. 'limits:' .. name, tolerates(h), h[LEASE])
  if h[SLOT] ~= NO_SLOT then
    call('setbit', prefix .. 'slots:' .. name, h[SLOT], 1)
  end
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

local function add_holder(h)
  if h[PROVISIONAL] == 1 then
    add_entry(LEASE_ENTRY, h)
  end
  record[HOLDERS] = record[HOLDERS] + 1
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
  end
  put_holder(h)
end

-- Frees what a holder holds. The twin of step.freed and remove.
local function remove_holder(h, at)
  local r = record
  r[ENDED_TOKEN] = max(r[ENDED_TOKEN], h[TOKEN])
  r[FORGET_AT] = max(r[FORGET_AT], at + FORGET_AFTER, h[PROVISIONAL] == 0 and h[EXPIRES_AT] or 0)
  if h[PROVISIONAL] == 1 then
    remove_entry(LEASE_ENTRY, h)
  end
  r[HOLDERS] = r[HOLDERS] - 1
  sole_holder = nil
  if not has_holder_keys then
    return
  end
  call('zrem', prefix .. 'tokens:' .. name, h[LEASE])
  call('hdel', prefix .. 'holders:' .. name, h[LEASE])
  call('zrem', prefix .. 'until:' .. name, h[LEASE])
  call('zrem', prefix .. 'limits:' .. name, h[LEASE])
  if h[SLOT] ~= NO_SLOT then
    call('setbit', prefix .. 'slots:' .. name, h[SLOT], 0)
  end
  if r[HOLDERS] == 1 then -- its keys go when the record is written
    sole_holder = read_lease(call('hget', prefix .. 'holders:' .. name, call('zrange', prefix .. 'tokens:' .. name, 0, 0)[1]))
  end
end

-- Returns the lowest slot that no holder has. The twin of step.slot.
local function free_slot(mode, limit)
  if mode ~= SHARED or limit == 0 then
    return NO_SLOT
  elseif record[HOLDERS] <= 1 then
    return sole_holder and sole_holder[SLOT] == 0 and 1 or 0
  end
  local slots = prefix .. 'slots:' .. name
  if call('bitcount', slots) ~= call('zcount', prefix .. 'limits:' .. name, '-inf', '(' .. ANY_NUMBER) then
    error({err = 'a key of the name is gone'})
  end
  return call('bitpos', slots, 0)
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
    all[i] = read_lease(all[i])
  end
  sort(all, by_token)
  return all
end
