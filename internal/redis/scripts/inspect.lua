#!lua flags=allow-oom
-- Reads the record of a name. The reader judges it by the reply's now.
--
-- KEYS  as in the prelude
-- ARGV  nothing more
-- Reply ok with the record

return reply('ok', call('GET', KEYS[1]))
