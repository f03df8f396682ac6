#!lua flags=allow-oom
-- Reads the records of several names of one partition. The reader judges them
-- by the reply's now.
--
-- KEYS  1... fencepost:{N}:lock:<name>  the records
-- ARGV  as in the prelude, with an empty name
-- Reply ok with a record each, in the order of KEYS, '' for one that is missing

local all = {reply('ok')}
for i = 1, #KEYS do
  local record = redis.pcall('GET', KEYS[i])
  all[i + 1] = type(record) == 'table' and 'not a string' or record or ''
end
return all
