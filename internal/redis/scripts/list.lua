#!lua flags=allow-oom
-- Reads several names of one partition. The reader judges them by the reply's
-- now.
--
-- KEYS  1... fencepost:{N}:lock:<name>  the records, and the key that there never is
-- ARGV  as in the prelude, with an empty name; 5 how many holders to show at most of each
-- Reply ok with a list each, in the order of KEYS: record, holders and dead
--       gateways, none for a name that is missing

local all = {head('ok')}
for i = 1, #KEYS - 1 do
  all[i + 1] = show(KEYS[i], tonumber(ARGV[5])) or {}
end
return all
