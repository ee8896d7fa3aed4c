package runtime

// Item is an object of an installation outside its database and its archives: in Docker, on
// Docker's host or in a cluster.
type Item struct {
	// Kind is container, volume, home, record of a home, network, image, nftables table, Pod,
	// record or set aside.
	Kind   string
	Name   string
	Detail string // text for administrators
}

// Inventory lists the objects of an installation outside its database and its archives.
type Inventory struct {
	Remove []Item // removed by the command uninstall
	Homes  []Item // removed only on request
	Keep   []Item // never removed
}
