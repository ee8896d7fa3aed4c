package replica

import (
	"fmt"
	"maps"
	"slices"

	"codehub/internal/postgres"
)

// Settings are the settings that servers compare. Keys are the names as users write
// them; values must not be secret.
type Settings struct {
	// Must are settings that all servers must share, because a leader with another
	// value looks for homes and archives in the wrong place. A setting that one of
	// two servers does not report is not compared.
	Must map[string]string
	// Should are settings whose values change with the leader if they differ.
	Should map[string]string
	// DataDir is this server's data directory, which it locks. So another server on
	// the same host with the same directory has ended, even if its row says
	// otherwise.
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

// Difference is a setting that differs between two servers.
type Difference struct {
	Setting, Ours, Theirs string
	Host                  string // the other server's
}

// Differs is the error of Join if this server must not run together with another.
type Differs struct{ Difference }

func (d *Differs) Error() string {
	return fmt.Sprintf("%s is %q, and %q on the server on %s, which uses the same database", d.Setting, d.Ours, d.Theirs, d.Host)
}

// compare compares the settings with those of live servers; host is this server's
// host name.
func (s Settings) compare(host string, others []postgres.Replica) (warnings []Difference, err error) {
	for _, o := range others {
		if !o.Alive || o.Age > postgres.Present || s.DataDir != "" && o.Hostname == host && o.Settings[dataDir] == s.DataDir {
			continue
		}
		if d := differences(s.Must, o); len(d) > 0 {
			return nil, &Differs{d[0]}
		}
		warnings = append(warnings, differences(s.Should, o)...)
	}
	return warnings, nil
}

// differences returns the differing settings by name, without those that the other
// server does not report.
func differences(ours map[string]string, other postgres.Replica) (list []Difference) {
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if theirs, ok := other.Settings[name]; ok && theirs != ours[name] {
			list = append(list, Difference{Setting: name, Ours: ours[name], Theirs: theirs, Host: other.Hostname})
		}
	}
	return list
}
