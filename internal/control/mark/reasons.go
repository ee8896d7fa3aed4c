package mark

// The reasons for a hold, which follow "codehub is on hold:". Pages translate
// them; each is listed in Reasons.
const (
	reasonWorkspaces       = "another database managed these workspaces last"
	reasonArchives         = "another database used these archives last"
	reasonAt               = ", at %s"
	reasonOriginal         = "another server uses the original of this database"
	reasonOriginalArchives = "another server uses the original of this database and the same archives"
)

// Reasons lists the reasons for a hold, with %s for a time.
func Reasons() []string {
	return []string{reasonWorkspaces, reasonArchives, reasonAt, reasonOriginal, reasonOriginalArchives}
}
