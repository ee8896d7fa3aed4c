package ballast

import "github.com/prometheus/client_golang/prometheus"

var (
	freeBytes = prometheus.NewDesc("codehub_data_disk_free_bytes",
		"Bytes that are free on the data folder's disk for users other than root.", nil, nil)
	freeNodes = prometheus.NewDesc("codehub_data_disk_free_inodes",
		"Inodes that are free on the data folder's disk; absent if the file system has no limit.", nil, nil)
	ballastBytes = prometheus.NewDesc("codehub_ballast_bytes",
		"Size in bytes of the ballast; 0 while it is given up.", nil, nil)
)

// Describe implements prometheus.Collector.
func (b *Ballast) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{freeBytes, freeNodes, ballastBytes} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (b *Ballast) Collect(out chan<- prometheus.Metric) {
	d, kept := b.State()
	gauge := func(desc *prometheus.Desc, v int64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v))
	}
	gauge(freeBytes, d.Free)
	if d.Nodes > 0 {
		gauge(freeNodes, d.FreeNodes)
	}
	gauge(ballastBytes, kept)
}
