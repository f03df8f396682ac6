-- The rich part of expire.lua: nothing is done before something is due, for
-- looking after a name is a sign of life.

if skewed or now >= reply.due() then
  t.room = tonumber(sub(ARGV[2], 18, 21))
  rules.settle()
  rules.hand_off()
end
local r = t.record
if r and r.n + r.queued + r.resting > 0 then
  detail = fmt('%.0f', reply.due() - now)
end
return reply.finish('ok')
