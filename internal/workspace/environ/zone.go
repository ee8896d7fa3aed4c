package environ

import (
	"time"
	_ "time/tzdata" // for systems without a database of time zones
)

// maxZone is longer than the names of all time zones.
const maxZone = 64

// ValidZone reports whether name is a time zone of the IANA database, such as
// Asia/Seoul or UTC.
func ValidZone(name string) bool {
	if name == "" || name == "Local" || len(name) > maxZone {
		return false
	}
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if i == 0 && !letter || !letter && (c < '0' || c > '9') && c != '/' && c != '_' && c != '+' && c != '-' {
			return false
		}
	}
	_, err := time.LoadLocation(name)
	return err == nil
}
