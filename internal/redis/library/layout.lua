-- The rules of a lock as Redis runs them: the twin of fencing.Step, in its order and
-- words. The files of this directory are one library of Redis Functions, or one
-- script where there are none. Names in capitals are no variables: library.go puts
-- in what they stand for, the places of fields (codec.go describes the texts), their
-- formats, and the constants of package fencing.
--
-- Keys, all in the slot of partition N
--   fencepost:{N}:never          there is no such key, so that Cluster runs nothing in
--                                a slot that is being moved; a call names no other
--   fencepost:{N}:lock:<name>    string, the record of the name, and behind it the
--                                lease of the holder where there is just one
--   fencepost:{N}:token          string, the highest token issued
--   fencepost:{N}:guard          string, what is remembered in order to be careful
--   fencepost:{N}:expiry         zset, name -> when expire has something to do there,
--                                or sooner; held and waited-for names;
--                                and a mark, see indexes.go
--   fencepost:{N}:names          zset, name -> 0; held names only; and a mark
--   fencepost:{N}:ended:<name>:<lease>  string, the tombstone of a lease
--   fencepost:{N}:history:<name> list of the last ends, oldest first: see pack_end
--   fencepost:{N}:histories      zset, name -> when its history was looked after
--   fencepost:{N}:gateways       hash, gateway -> its last sign of life, us;
--                                heard, stopped, serving: see fencing.Gateways
--   fencepost:{N}:gateway:<gateway>  zset, what there is for it: see entry_of
--   fencepost:{N}:marks:<name>   hash, slot -> the highest token admitted there, of those
--                                above the mark of the name
--   fencepost:{N}:doubt:<name>   hash, lease id -> '', of leases and resting places of which
--                                a time was set while the clocks differed
--   fencepost:{N}:intent:<name>  string, until when, us, and the lease that nobody is
--                                to get in before
--   fencepost:{N}:token:steps    string, counts the steps of a test, whose clock stands still
--   fencepost:{N}:acked          string, written before replicas are asked what they have
--   of the first partition of a node
--   fencepost:{N}:libraries      hash, library -> when somebody last said that it is used
--   fencepost:{N}:reaper         string, the handle that looks after what is due there now
--   of a name with several holders
--   fencepost:{N}:holders:<name> hash, lease id -> the lease
--   fencepost:{N}:until:<name>   zset, lease id -> expires_at; of a provisional one
--                                below 0, the rank of its gateway
--   fencepost:{N}:limits:<name>  zset, lease id -> how many permits it tolerates
--   fencepost:{N}:tokens:<name>  zset, lease id -> token
--   fencepost:{N}:slots:<name>   bitmap of the slots that are taken
--   of a name with a queue
--   fencepost:{N}:places:<name>  hash, lease id -> the place
--   fencepost:{N}:queue:<name>   zset, lease id -> seq; connected places only
--   fencepost:{N}:resting:<name> zset, lease id -> when its rest ends
--
-- A call has the header, then an operation each. It answers with a list: the time of
-- the store, us, and whether the clocks differ; then what each operation came to, a
-- reply and items, one after the other, each a letter and what it is about (item.go). A
-- message is a time and such items.

-- A library can't have them before it is called.
local call, attempt, pack, unpack, spread, concat, byte, sub, fmt, max, min, sort

local function fetch()
  call, attempt, pack, unpack, spread, concat = redis.call, redis.pcall, struct.pack, struct.unpack, _G.unpack, table.concat
  byte, sub, fmt, max, min, sort = string.byte, string.sub, string.format, math.max, math.min, table.sort
end

-- A lease and a record are lists of fields. The first of these mostly have their usual
-- values, and are left out of the text where all of them have. A byte before them says
-- whether they are there.
local lease_as_usual, record_as_usual = LEASE_AS_USUAL, RECORD_AS_USUAL

local function unpack_lease(text, at)
  if byte(text, at) == 0 then
    return {LEASE_USUAL, unpack(LEASE_SHORT, text, at + 1)}
  end
  return {unpack(LEASE_FORMAT, text, at + 1)}
end

-- Reads a lease, held or waited for. At LEASE_TEXT is how it is stored.
local function read_lease(text, at)
  local h = unpack_lease(text, at or 1)
  h[LEASE_TEXT] = at and sub(text, at) or text
  return h
end

local function write_lease(h)
  local text
  if lease_as_usual(h) then
    text = pack(WRITE_LEASE_SHORT, 0, spread(h, LEASE_COMMON, LEASE_SIZE))
  else
    text = pack(WRITE_LEASE, 1, spread(h, 1, LEASE_SIZE))
  end
  h[LEASE_TEXT] = text
  return text
end

-- Returns how a lease ended, to people: it goes without what proves it, with which its text
-- ends.
local function pack_end(reason, at, h, break_reason)
  return pack(END_FORMAT, reason, at, break_reason) .. sub(h[LEASE_TEXT], 1, -1 - PROOF_SIZE)
end

-- Returns when the lease of an end was acquired.
local function end_acquired_at(entry)
  local _, _, _, at = unpack(END_FORMAT, entry)
  return unpack_lease(entry .. NO_PROOF, at)[ACQUIRED_AT]
end

local function read_record(text)
  if byte(text) == 0 then
    return {RECORD_USUAL, unpack(RECORD_SHORT, text, 2)}
  end
  return {unpack(RECORD_FORMAT, text, 2)}
end

local function write_record(r)
  if record_as_usual(r) then
    return pack(WRITE_RECORD_SHORT, 0, spread(r, RECORD_COMMON, RECORD_SIZE))
  end
  return pack(WRITE_RECORD, 1, spread(r, 1, RECORD_SIZE))
end
