-- The rich part of takeback.lua: the twin of step.takeBack.

local function take_back(claim)
  local lease, stamp = sub(claim, 44, 69), sub(claim, 70, 85)
  local only_provisional, also_told = sub(claim, 86) == 'p', sub(claim, 86) == 'r'
  local h = rules.find(lease)
  if h and claims.fit(h, claim) and stamp ~= NO_STAMP and h.stamp == stamp
    and (h.provisional or not only_provisional) and (not h.told or also_told) then
    rules.undo(h)
    return
  end
  local p = not only_provisional and queue.find(lease)
  if p and claims.fit(p, claim) and p.stamp == stamp and p.expires_at == 0 then
    queue.depart(p)
  end
end

rules.settle()
take_back(ARGV[5])
return conclude('ok')
