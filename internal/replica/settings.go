package replica

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"codehub/internal/postgres"
)

// Settings are those of this server that others compare theirs with. Keys are
// the settings' names as people write them, values must not be secret.
type Settings struct {
	// Must are the same on all servers, or one that leads does harm: it looks
	// for homes and archives where there are none. One that either server does
	// not have is not compared.
	Must map[string]string
	// Should are the same, or things change with whoever leads.
	Should map[string]string
	// DataDir is this server's data folder, which no other process can have
	// while this one is up: of two servers of one host with the same folder
	// the earlier has ended, whatever its row says.
	DataDir string
}

const dataDir = "CODEHUB_DATA_DIR"

func (s Settings) recorded() map[string]string {
	all := map[string]string{}
	maps.Copy(all, s.Must)
	maps.Copy(all, s.Should)
	all[dataDir] = s.DataDir
	return all
}

// Difference is a setting that two servers do not have in common.
type Difference struct {
	Setting, Ours, Theirs string
	Host                  string // theirs
}

// Differs is the error of Join for a server that must not work beside another.
type Differs struct{ Difference }

func (d *Differs) Error() string {
	return fmt.Sprintf("%s is %q, and %q on the server on %s, which works on the same database", d.Setting, d.Ours, d.Theirs, d.Host)
}

// fresh is how long ago a server was seen that is held to be at work: four
// beats. One that was killed must not keep its successor from starting with
// other settings for longer.
const fresh = 20 * time.Second

// compare holds the settings against those of others that are at work; host is
// this server's.
func (s Settings) compare(host string, others []postgres.Replica) (warnings []Difference, err error) {
	for _, o := range others {
		if !o.Alive || o.Age > fresh || s.DataDir != "" && o.Hostname == host && o.Settings[dataDir] == s.DataDir {
			continue
		}
		if d := differences(s.Must, o); len(d) > 0 {
			return nil, &Differs{d[0]}
		}
		warnings = append(warnings, differences(s.Should, o)...)
	}
	return warnings, nil
}

// differences are by ascending name; what the other does not say is none.
func differences(ours map[string]string, other postgres.Replica) (list []Difference) {
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if theirs, ok := other.Settings[name]; ok && theirs != ours[name] {
			list = append(list, Difference{Setting: name, Ours: ours[name], Theirs: theirs, Host: other.Hostname})
		}
	}
	return list
}
