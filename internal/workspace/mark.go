package workspace

import "time"

// Mark says which database last led an installation, and when. The database,
// the bucket and the backend each keep the last one; see package mark.
type Mark struct {
	ID       string // random, a UUID
	Serial   int64  // grows with every mark of a database
	Identity string // of the database and its files
	At       time.Time
}
