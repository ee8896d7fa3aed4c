package sshgate

import (
	"container/list"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// Limits of connections whose user is not known yet. Those in all are few, but a new
// one replaces the oldest, so that a flood does not keep users out.
const (
	loginTimeout = 30 * time.Second
	// maxStarting and maxStartingPerAddress limit them in all, and of one address.
	maxStarting           = 512
	maxStartingPerAddress = 128
	// maxAuthTries limits the keys that are tried on one connection.
	maxAuthTries = 10
	// failureBurst and failureInterval limit the keys of an address that were refused:
	// that many at once, and one more after each interval.
	failureBurst    = 60
	failureInterval = 2 * time.Second
	maxAddresses    = 16 << 10 // that are remembered
	// maxTurnedAway limits the clients that are told at a time why they are refused, before
	// or after their login: the connections of others are closed without a message.
	maxTurnedAway    = 64
	turnAwayTimeout  = 2 * time.Second
	maxTurnAwayInput = 64 << 10 // bytes that are read until the client closes
)

const (
	// maxSlotsPerUser limits the connections and channels of a user.
	maxSlotsPerUser = 512
	// maxRefusedChannels limits the channels of a connection that was refused: enough to
	// tell the client why.
	maxRefusedChannels = 4
)

// Budget is what all connections together may take of the server.
type Budget struct {
	// Slots are for connections, also those that log in, and for channels and listeners.
	// Each takes at most one file descriptor.
	Slots int
	// Unread is how many channels may wait for a workspace that does not read their input.
	// The SSH library keeps up to 2 MiB of it for each.
	Unread int
}

const (
	// slotMemory is the part of the memory limit for each slot. A channel takes about
	// 200 KiB, and up to unreadMemory when it is unread.
	slotMemory, unreadMemory = 768 << 10, 2560 << 10
	// unreadShare is the share of the memory limit for unread channels.
	unreadShare = 8

	minSlots, maxSlots, minUnread = 128, 1 << 20, 8
)

// BudgetOf returns the budget of a server with this memory limit, in bytes.
func BudgetOf(memory int64) Budget {
	return Budget{
		Slots:  int(min(max(memory/slotMemory, minSlots), maxSlots)),
		Unread: int(min(max(memory/unreadShare/unreadMemory, minUnread), maxSlots)),
	}
}

// shares divides the slots.
type shares struct {
	starting   int // connections that log in
	turnedAway int // those that are told why they are refused
	open       int // connections with a user, channels and listeners
	perUser    int // of open
}

func sharesOf(slots int) shares {
	s := shares{starting: min(maxStarting, max(slots/4, 1)), turnedAway: min(maxTurnedAway, max(slots/16, 1))}
	s.open = max(slots-s.starting-s.turnedAway, 1)
	s.perUser = min(maxSlotsPerUser, max(s.open/8, min(minSlotsPerUser, s.open)))
	return s
}

// minSlotsPerUser are enough for an editor.
const minSlotsPerUser = 16

// Errors of a channel or a listener, for its client.
var (
	errChannels       = errors.New("too many SSH channels are open on this server; try again later")
	errChannelsOfUser = errors.New("you have too many SSH channels open; close some first")
)

// admission counts connections. It is safe for concurrent use.
type admission struct {
	maxOpen, maxPerUser int // connections
	shares              shares
	now                 func() time.Time

	mu       sync.Mutex
	open     int            // connections
	users    map[string]int // their connections
	taken    int            // slots
	slots    map[string]int // of users
	starting list.List      // of *start, the oldest first
	byNet    map[netip.Prefix]int
	failures map[netip.Prefix]failure
}

// start is a connection whose user is not known yet.
type start struct {
	from  netip.Prefix // invalid: not limited
	close func()
	elem  *list.Element
}

// failure counts the refused keys of an address: as many as were left after at.
type failure struct {
	count float64
	at    time.Time
}

func newAdmission(s Settings, b Budget, now func() time.Time) *admission {
	return &admission{
		maxOpen: s.MaxConnections, maxPerUser: s.MaxPerUser, shares: sharesOf(b.Slots), now: now,
		users: map[string]int{}, slots: map[string]int{}, byNet: map[netip.Prefix]int{}, failures: map[netip.Prefix]failure{},
	}
}

// networkOf returns what counts as one address: an IPv6 /64 network does.
func networkOf(a netip.Addr) netip.Prefix {
	if a = a.Unmap().WithZone(""); !a.IsValid() {
		return netip.Prefix{}
	}
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// begin admits a connection whose user is not known yet; nil: it is refused. end must
// be called.
func (a *admission) begin(from netip.Prefix, closeConn func()) *start {
	a.mu.Lock()
	defer a.mu.Unlock()
	if from.IsValid() && (a.byNet[from] >= maxStartingPerAddress || a.remaining(from) < 1) {
		return nil
	}
	if a.starting.Len() >= a.shares.starting {
		oldest := a.starting.Front().Value.(*start)
		a.drop(oldest)
		go oldest.close()
	}
	s := &start{from: from, close: closeConn}
	s.elem = a.starting.PushBack(s)
	if from.IsValid() {
		a.byNet[from]++
	}
	return s
}

// end ends the wait for a connection's user. refused is the number of its failed keys.
func (a *admission) end(s *start, refused int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(s)
	if refused == 0 || !s.from.IsValid() {
		return
	}
	if len(a.failures) >= maxAddresses {
		a.forget()
	}
	a.failures[s.from] = failure{count: failureBurst - a.remaining(s.from) + float64(refused), at: a.now()}
}

func (a *admission) drop(s *start) {
	if s.elem == nil {
		return
	}
	a.starting.Remove(s.elem)
	s.elem = nil
	if s.from.IsValid() {
		if a.byNet[s.from]--; a.byNet[s.from] == 0 {
			delete(a.byNet, s.from)
		}
	}
}

// remaining is how many more keys of an address may fail.
func (a *admission) remaining(from netip.Prefix) float64 {
	f, ok := a.failures[from]
	if !ok {
		return failureBurst
	}
	left := f.count - float64(a.now().Sub(f.at))/float64(failureInterval)
	return failureBurst - max(0, left)
}

// forget removes the addresses whose failures have passed, or else any half of them.
func (a *admission) forget() {
	for from := range a.failures {
		if a.remaining(from) >= failureBurst {
			delete(a.failures, from)
		}
	}
	for from := range a.failures {
		if len(a.failures) <= maxAddresses/2 {
			return
		}
		delete(a.failures, from)
	}
}

// enter counts an open connection of a user; leave must be called if it is admitted.
func (a *admission) enter(user string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.open >= a.maxOpen, a.taken >= a.shares.open:
		return errFull
	case a.users[user] >= a.maxPerUser, a.slots[user] >= a.shares.perUser:
		return errTooMany
	}
	a.open++
	a.users[user]++
	a.take(user)
	return nil
}

func (a *admission) leave(user string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
	if a.users[user]--; a.users[user] == 0 {
		delete(a.users, user)
	}
	a.release(user)
}

// enterChannel counts a channel or a listener of a user; leaveChannel must be called if it
// is admitted.
func (a *admission) enterChannel(user string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.slots[user] >= a.shares.perUser:
		return errChannelsOfUser
	case a.taken >= a.shares.open:
		return errChannels
	}
	a.take(user)
	return nil
}

func (a *admission) leaveChannel(user string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(user)
}

// take and release are called with a.mu locked.
func (a *admission) take(user string) {
	a.taken++
	a.slots[user]++
}

func (a *admission) release(user string) {
	a.taken--
	if a.slots[user]--; a.slots[user] == 0 {
		delete(a.slots, user)
	}
}

// count returns the number of open connections.
func (a *admission) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open
}

func (a *admission) slotsUsed() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.taken
}
