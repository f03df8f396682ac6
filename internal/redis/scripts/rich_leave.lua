-- All of leave.lua: the twin of step.leave.

local function leave(claim)
  local lease, stamp = sub(claim, 44, 69), sub(claim, 70)
  if skewed then
    return 'clock_skew'
  end
  local h = rules.find(lease)
  if h and claims.fit(h, claim) then
    if h.stamp ~= stamp then
      return 'replaced'
    end
    flags = h.told and '' or 'f'
    reply.holds(h)
    return 'ok'
  end
  local p = queue.find(lease)
  if not p or not claims.fit(p, claim) then
    return 'ok'
  end
  if p.stamp ~= stamp then
    return 'replaced'
  end
  if p.expires_at == 0 then
    reply.waits(p)
    queue.depart(p)
  end
  t.shows = true
  return 'ok'
end

rules.settle()
return conclude(leave(ARGV[5]))
