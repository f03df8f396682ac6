-- The twin of fencing.Gateways: whose waiters and provisional leases count. Signs
-- of life are read once, where they matter, and written as they come.

local gateways = {
  prefix = string.match(KEYS[1], '^fencepost:{%d+}:'), -- of the partition's keys
  me = sub(ARGV[2], 1, 16),
  seen = false, heard = 0, stopped = 0, serving = 0, -- as in fencing.Gateways; unknown until read
}

-- Reads the signs of life of this gateway and of those that are keys of some.
function gateways.load(some)
  local g = gateways
  if g.seen then
    return
  end
  local ids = {g.me}
  for id in pairs(some) do
    ids[#ids + 1] = id
  end
  local known = call('HMGET', g.prefix .. 'gateways', 'heard', 'stopped', 'serving', unpack(ids))
  g.heard, g.stopped, g.serving = tonumber(known[1] or 0), tonumber(known[2] or 0), tonumber(known[3] or 0)
  g.seen = {}
  for i = 1, #ids do
    g.seen[ids[i]] = known[i + 3] and tonumber(known[i + 3])
  end
end

-- Returns when a gateway counts as dead.
function gateways.lapse(id)
  local GATEWAY_TTL = 4000000 -- us, fencing.GatewayTTL
  local STALL_AFTER = 2500000 -- us, fencing.StallAfter
  local g = gateways
  local seen = g.seen[id] or 0
  local till = seen + GATEWAY_TTL
  return seen + STALL_AFTER > g.stopped and math.max(till, g.serving + GATEWAY_TTL) or till
end

function gateways.alive(id)
  return id == gateways.me or now < gateways.lapse(id)
end

-- Notes a sign of life of this gateway; with joins it has a waiter here from now
-- on. The twin of fencing.Gateways.hear and join.
function gateways.hear(joins)
  local GATEWAY_TTL = 4000000 -- us, fencing.GatewayTTL
  local STALL_AFTER = 2500000 -- us, fencing.StallAfter
  local HEAR_INTERVAL = 500000 -- us, fencing.GatewayTTL / 8
  local g, news = gateways, {}
  if now >= math.max(g.heard + STALL_AFTER, g.serving + GATEWAY_TTL) then
    g.stopped, g.serving = g.heard, now
    news = {'stopped', fmt('%016.0f', g.stopped), 'serving', now_text}
  end
  local seen = g.seen[g.me]
  if seen and now >= seen + HEAR_INTERVAL or joins and not seen then
    g.seen[g.me], g.heard = now, now
    news[#news + 1] = g.me
    news[#news + 1] = now_text
  elseif now >= g.heard + HEAR_INTERVAL then
    g.heard = now
  else
    return
  end
  call('HSET', g.prefix .. 'gateways', 'heard', now_text, unpack(news))
  if joins and not seen then
    gateways.forget()
  end
end

-- Forgets the gateways of long ago: every run of one has a name of its own.
function gateways.forget()
  local KNOWN_FOR = 86400000000 -- us, fencing.ForgetAfter
  local g = gateways
  local all = call('HGETALL', g.prefix .. 'gateways')
  for i = 1, #all, 2 do
    local id = #all[i] == #g.me and all[i]
    if id then
      g.seen[id] = tonumber(all[i + 1])
      if now >= math.max(g.seen[id] + KNOWN_FOR, g.lapse(id)) then
        g.seen[id] = nil
        call('HDEL', g.prefix .. 'gateways', id)
      end
    end
  end
end
