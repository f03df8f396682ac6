-- What a gateway's user needs, and no more.
grant usage on schema fencepost to USER
-- ;;
-- To lock the row needs the right to update something of it.
grant select, update (id) on fencepost.store to USER
-- ;;
grant select, insert, delete on fencepost.log to USER
-- ;;
grant select, insert, update, delete on fencepost.snapshot to USER
-- ;;
grant select, update on fencepost.snapshotter to USER
-- ;;
grant select, insert, update, delete on fencepost.lease to USER
-- ;;
grant execute on function fencepost.held, fencepost.lock_store, fencepost.turn, fencepost.put_leases, fencepost.append, fencepost.turn_alone to USER
-- ;; application
-- What an application's user needs: it looks at leases, and guards the one it holds.
grant usage on schema fencepost to USER
-- ;;
grant select on fencepost.leases to USER
-- ;;
grant execute on function fencepost.guard to USER
