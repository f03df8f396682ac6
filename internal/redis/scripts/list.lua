#!lua flags=allow-oom
-- Reads the records of several names of one partition. The reader judges them
-- by the reply's now.
--
-- KEYS  1... fencepost:{N}:lock:<name>  the records
-- ARGV  as in the prelude, with an empty name
-- Reply ok with a record each, in the order of KEYS, '' for one that is missing

local all = reply('ok')
for i = 1, #KEYS do
  all[i + 2] = call('GET', KEYS[i]) or ''
end
return all
