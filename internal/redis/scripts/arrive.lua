#!lua flags=allow-oom
-- Notes who serves the partition. If that is not who served last, something was
-- lost, or a quarantine turns out to be too short, nothing new is granted for as
-- long as somebody may still believe in a lease that was lost. The twin of
-- fencing.Arrive.
--
-- KEYS  as in the prelude
-- ARGV  as in the prelude, with an empty name
--       5 the server
--       6 lines: longest, us; until, us; least, us; most, us; born of the guard that
--         the gateway has seen, 0 for none; '-', '?' if a partition without a guard
--         stays as it is, 'l' lossless, 'n' lossless where there is no guard, 'x' for
--         something that was lost, or 'm' if the gateway was served elsewhere until
--         now; format; partitions
-- Reply ok, with the guard as detail, and behind it a line: who served before;
--       `not_found` if there is none and it stays so; clock_skew: until when would
--       be as wrong as the clock

if skewed then
  return head('clock_skew')
end
local guard = call('GET', GUARD)
local longest, known, least, most, seen, how, layout = string.match(ARGV[6], '^(%d+)\n(%d+)\n(%d+)\n(%d+)\n(%d+)\n(.)\n(%d+\n%d+)$')
if not guard and how == '?' then
  return head('not_found')
end
local born, server = now_text, ''
if guard then
  born = sub(guard, 65, 80)
  layout, server = string.match(guard, '^(%d+\n%d+)\n(.*)$', 82)
end
guard = (guard and sub(guard, 1, 64) or '0000000000000000000000000000000000000000000000000000000000000000')
guard = used(guard, 0) -- what has not been in use for long does not count
local till, lossless = tonumber(sub(guard, 1, 16)), how == 'l' or how == 'n' and server == ''
local in_use = math.max(tonumber(sub(guard, 33, 48)), tonumber(sub(guard, 49, 64)))
local floor, highest = tonumber(ARGV[4]), tonumber(call('GET', KEYS[2]) or 0)
local behind = floor > highest and floor <= now + MAX_FLOOR_LEAD
local longer = now < till and (tonumber(longest) > in_use or how == 'm') -- than who began the quarantine knew of
local lost = how == 'x' or seen ~= '0' and tonumber(seen) ~= tonumber(born)
if lost or behind or longer or not lossless and server ~= ARGV[5] then
  till = math.max(till, now + math.min(math.max(in_use, longest, least), most))
end
if most ~= '0' then
  till = math.max(till, math.min(known, now + most))
end
guard = fmt('%016.0f', till) .. sub(guard, 17)
if longest ~= '0' then
  guard = used(guard, tonumber(longest))
end
guard = guard .. born .. '\n' .. layout .. '\n' .. ARGV[5]
if behind then
  call('INCRBY', KEYS[2], fmt('%.0f', floor - highest))
end
call('SET', GUARD, guard)
detail = guard .. '\n' .. server
return head('ok')
