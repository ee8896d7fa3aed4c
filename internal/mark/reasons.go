package mark

// The reasons for a hold, which follow "codehub is on hold:". Pages translate
// them; each is listed in Reasons.
const (
	reasonDocker           = "another database used this Docker last"
	reasonArchives         = "another database used these archives last"
	reasonAt               = ", at %s"
	reasonOriginal         = "another server uses the original of this database"
	reasonOriginalArchives = "another server uses the original of this database and the same archives"
)

// Reasons lists the reasons for a hold, with %s for a time.
func Reasons() []string {
	return []string{reasonDocker, reasonArchives, reasonAt, reasonOriginal, reasonOriginalArchives}
}
