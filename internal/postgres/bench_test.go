package postgres_test

import (
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// The cost of a tick with 100,000 workspaces: the read, and the write of one row in a hundred.
func BenchmarkTick(b *testing.B) {
	const rows = 100_000
	e := open(b, postgres.Options{})
	fill(e, rows)
	e.exec(`VACUUM ANALYZE workspaces`)
	c := postgres.NewController(postgres.NewSession(e.conn()))
	b.Run("CandidatesFirst", func(b *testing.B) {
		conn := e.conn()
		for b.Loop() {
			must(postgres.NewController(postgres.NewSession(conn)).Candidates(b.Context()))(b)
		}
	})
	must(c.Candidates(b.Context()))(b)
	b.Run("Candidates", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if n := len(must(c.Candidates(b.Context()))(b)); n != rows {
				b.Fatal(n)
			}
		}
	})
	var list []workspace.Workspace
	for _, row := range must(c.Candidates(b.Context()))(b) {
		list = append(list, *row)
	}
	b.Run("Apply1000", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			var changes []postgres.Change
			for j := range rows / 100 {
				w := &list[j*100]
				next := *w
				next.Phase = []workspace.Phase{workspace.PhaseRunning, workspace.PhaseStandby}[i%2]
				changes = append(changes, postgres.Change{Seen: *w, Next: next, Claim: true})
				w.Phase = next.Phase
			}
			for _, ok := range must(c.Apply(b.Context(), changes))(b) {
				if !ok {
					b.Fatal("did not land")
				}
			}
		}
	})
}
