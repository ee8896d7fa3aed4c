package bucket

import (
	"fmt"
	"strconv"
	"strings"

	"codehub/internal/base/setting"
)

// Settings are the settings of a Bucket, as codehub serve declares them.
type Settings struct {
	MinFree string `name:"min-free" env:"CODEHUB_MIN_FREE" default:"5%" help:"Minimum free space, in percent, on a disk with homes; below it nothing is started or restored (0 = no minimum)."`

	// MinFreeShare is MinFree as a share of a disk, such as 0.05, that restores leave
	// free (see storagejob.Spec); 0: none. Archives into a folder leave half of it
	// free, since archiving is what frees space on a full disk.
	MinFreeShare float64 `kong:"-"`
}

// Resolve checks the settings and computes MinFreeShare. It returns an invalid one as
// *setting.Problem.
func (s *Settings) Resolve() error {
	share, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(s.MinFree), "%")), 64)
	if err != nil || !(share >= 0 && share <= 90) {
		return setting.Invalid("CODEHUB_MIN_FREE", fmt.Sprintf("%q is not a share of a disk", s.MinFree), "give a percentage from 0 to 90, like 5%")
	}
	s.MinFreeShare = share / 100
	return nil
}
