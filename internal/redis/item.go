package redis

// The items of which replies and messages are made behind their heads: a letter each, and
// what it is about. The library says ITEM_GRANT for itemGrant.
const (
	itemName     = 'N' // in a message: the name that the next items are about
	itemView     = 'V' // the public view of the name; its holders and waiters come next, in order
	itemDelay    = 'D' // until when nobody is granted the name
	itemHolder   = 'H'
	itemWaiter   = 'W'
	itemOwnLease = 'O' // the caller's lease
	itemOwnPlace = 'P' // the caller's position and place
	itemGrant    = 'G' // a lease that was granted, or got its token by a claim
	itemEnd      = 'E' // a lease that ended: see pack_end
	itemLeft     = 'L' // a place that was left, or a grant that was taken back
	itemNotice   = 'B' // a lease that was given notice; only in messages
	itemEvicted  = 'Z' // why, and the place of a waiter that was evicted
	itemAsk      = 'A' // the stamp of a request that is to ask again; only in messages to gateways
	itemJoined   = 'Q' // a place that was joined; only in messages: a reply has flagJoined
	itemReplaced = 'X' // gateway and stamp of a request that was replaced
	itemEntry    = 'U' // what there is for the gateway: see entry_of
	itemDue      = 'T' // a name where something is due
	itemGuard    = 'Y' // of an arrival: the guard as it is now
)

// Flags of a reply, and what the library calls them.
const (
	flagFresh      = "f" // this request made the grant
	flagJoined     = "j" // it has joined the queue
	flagView       = "v" // the view belongs to the answer
	flagMore       = "m" // more has come due than one step does, or a heartbeat has more to tell
	flagUnguarded  = "u" // there is no guard, or the server was not checked
	flagBehind     = "b" // no token as high as the floor was issued here
	flagPlacesLost = "q" // places of the name were forgotten, for keys that are gone
	flagLeasesLost = "x" // leases of it were
)

// Entries of a gateway: what the library says for each kind. Leases that are not confirmed come
// first, and streams last: however many there are, no grant waits for them.
const (
	leaseEntry  = "L" // a lease that is not confirmed
	placeEntry  = "P" // a connected place
	streamEntry = "S" // a lease that hangs on a stream
)

// letters are the constants above by their names in the library.
var letters = map[string]string{
	"ITEM_NAME": string(itemName), "ITEM_VIEW": string(itemView), "ITEM_DELAY": string(itemDelay), "ITEM_HOLDER": string(itemHolder), "ITEM_WAITER": string(itemWaiter),
	"ITEM_OWN_LEASE": string(itemOwnLease), "ITEM_OWN_PLACE": string(itemOwnPlace), "ITEM_GRANT": string(itemGrant),
	"ITEM_END": string(itemEnd), "ITEM_LEFT": string(itemLeft), "ITEM_NOTICE": string(itemNotice), "ITEM_EVICTED": string(itemEvicted), "ITEM_ASK": string(itemAsk), "ITEM_JOINED": string(itemJoined), "ITEM_REPLACED": string(itemReplaced),
	"ITEM_ENTRY": string(itemEntry), "ITEM_DUE": string(itemDue), "ITEM_GUARD": string(itemGuard),
	"FLAG_FRESH": flagFresh, "FLAG_JOINED": flagJoined, "FLAG_VIEW": flagView, "FLAG_MORE": flagMore, "FLAG_UNGUARDED": flagUnguarded,
	"FLAG_BEHIND": flagBehind, "FLAG_PLACES_LOST": flagPlacesLost, "FLAG_LEASES_LOST": flagLeasesLost,
	"LEASE_ENTRY": leaseEntry, "PLACE_ENTRY": placeEntry, "STREAM_ENTRY": streamEntry,
	"EVENTS_CHANNEL": eventsChannel, "GATEWAY_CHANNEL": gatewayChannel(""),
}
