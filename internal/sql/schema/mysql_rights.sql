-- What a gateway's user needs, and no more.
-- To lock the row needs the right to update something of it.
grant select, update (id) on store to USER
-- ;;
grant select, insert, delete on log to USER
-- ;;
grant select, insert, delete on snapshot to USER
-- ;;
grant select, update on snapshotter to USER
-- ;;
grant select, insert, update, delete on lease to USER
-- ;;
grant select, insert, update, delete on renewal to USER
-- ;; application
-- What an application's user needs: it looks at leases, and guards the one it holds.
grant select on leases to USER
-- ;;
grant execute on function guard to USER
