package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/client"
	"codehub/internal/workspace"
)

const (
	scaleRounds = 3 // of the starts and their rivals
	kubectls    = 8 // run at once; 2, 4, 16 and 40 took longer
)

// start starts workspaces at once, by a hundred connections, and waits until all run.
func (s *scale) start(ctx context.Context, ids []string) error { return s.bring(ctx, ids, "RUNNING") }

// stop stops workspaces and waits until all have stopped.
func (s *scale) stop(ctx context.Context, ids []string) error { return s.bring(ctx, ids, "STANDBY") }

func (s *scale) bring(ctx context.Context, ids []string, to string) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(100)
	for _, id := range ids {
		g.Go(func() error {
			err := s.api.setDesired(gctx, id, to)
			var refused *client.Error
			if err != nil && !errors.As(err, &refused) { // the server has closed the idle connection
				err = s.api.setDesired(gctx, id, to)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.api.await(ctx, id, to); err != nil {
			return err
		}
	}
	return nil
}

// starts measures starts at once, and the same Pods without codehub, in turns. The workspaces
// of the last turn stay.
func (s *scale) starts(ctx context.Context) error {
	free := s.ids[len(s.ids)-s.burst:]
	burst := s.ids[s.running : s.running+s.burst]
	// The cluster makes a home's volume when its first Pod starts. Later starts do not wait for
	// that, so it is done before the rounds.
	if _, err := s.barePods(ctx, free, "Pod with a new volume", s.createPods); err != nil {
		return err
	}
	if err := s.start(ctx, burst); err != nil {
		return err
	}
	if err := s.stop(ctx, burst); err != nil {
		return err
	}
	var ours, applied, created []time.Duration
	for round := range scaleRounds {
		for _, rival := range []struct {
			name   string
			create func(context.Context, []*corev1.Pod) error
			took   *[]time.Duration
		}{
			{"created in parallel", s.createPods, &created},
			{"applied by kubectl", s.applyPods, &applied},
		} {
			took, err := s.barePods(ctx, free, "Pod "+rival.name, rival.create)
			if err != nil {
				return err
			}
			*rival.took = append(*rival.took, took)
		}
		took, err := s.measureStarts(ctx, burst)
		if err != nil {
			return err
		}
		ours = append(ours, took)
		if round+1 == scaleRounds {
			break
		}
		if err := s.stop(ctx, burst); err != nil {
			return err
		}
	}
	s.running += s.burst
	ratio := float64(median(ours)) / float64(median(applied))
	fmt.Printf("kubescale: %d starts at once %s; %d kubectl at once apply the same Pods in %s: %.2f times as long (at most %.1f): %s\n",
		s.burst, ms(median(ours)), kubectls, ms(median(applied)), ratio, scaleStarts, verdict(ratio <= scaleStarts))
	fmt.Printf("kubescale: one program with a hundred connections creates them in %s: %.2f times as long\n", ms(median(created)), float64(median(ours))/float64(median(created)))
	return nil
}

// measureStarts starts workspaces at once and returns the time until all run.
func (s *scale) measureStarts(ctx context.Context, ids []string) (time.Duration, error) {
	before, err := s.ticks(ctx)
	if err != nil {
		return 0, err
	}
	programs, err := programTimes()
	if err != nil {
		return 0, err
	}
	at := time.Now()
	if err := s.start(ctx, ids); err != nil {
		return 0, err
	}
	took := time.Since(at)
	used, err := programTimes()
	if err != nil {
		return 0, err
	}
	after, err := s.ticks(ctx)
	if err != nil {
		return 0, err
	}
	fmt.Printf("kubescale: %d starts in %s; processor time of one: %s\n", len(ids), ms(took), usedPer(programs, used, len(ids)))
	fmt.Printf("kubescale: requests per start: %s\n", requestsPer(s.cluster.Requests(kubeNamespace, at), len(ids)))
	fmt.Printf("kubescale: %s\n", after.since(before).String("ticks during the starts"))
	return took, nil
}

// createPods creates Pods as fast as one program can.
func (s *scale) createPods(ctx context.Context, all []*corev1.Pod) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(100)
	for _, p := range all {
		g.Go(func() error {
			_, err := s.cluster.Client.CoreV1().Pods(kubeNamespace).Create(gctx, p, metav1.CreateOptions{})
			return err
		})
	}
	return g.Wait()
}

// applyPods divides Pods among kubectls.
func (s *scale) applyPods(_ context.Context, all []*corev1.Pod) error {
	var g errgroup.Group
	for part := range slices.Chunk(all, (len(all)+kubectls-1)/kubectls) {
		g.Go(func() error {
			var files strings.Builder
			for _, p := range part {
				p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
				p.Namespace = kubeNamespace
				text, err := json.Marshal(p)
				if err != nil {
					return err
				}
				files.Write(append(text, '\n'))
			}
			_, err := s.cluster.Kubectl(files.String(), "apply", "--filename", "-")
			return err
		})
	}
	return g.Wait()
}

// barePods makes Pods like that of a workspace, with homes of their own, all at once, and
// returns the time until all run. It removes them.
func (s *scale) barePods(ctx context.Context, homes []string, what string, create func(context.Context, []*corev1.Pod) error) (time.Duration, error) {
	pods := s.cluster.Client.CoreV1().Pods(kubeNamespace)
	like, err := pods.Get(ctx, workspace.ID(s.ids[0]).ContainerName(), metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	like.Spec.NodeName = ""
	var wanted []*corev1.Pod
	for _, id := range homes {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "bare-" + id, Labels: map[string]string{"bench": "bare"}, Annotations: like.Annotations},
			Spec:       *like.Spec.DeepCopy(),
		}
		for i := range p.Spec.Volumes {
			if claim := p.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
				claim.ClaimName = workspace.ID(id).VolumeName()
			}
		}
		wanted = append(wanted, p)
	}
	all := metav1.ListOptions{LabelSelector: "bench=bare"}
	events, err := pods.Watch(ctx, all)
	if err != nil {
		return 0, err
	}
	defer func() { events.Stop() }()
	programs, err := programTimes()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := create(ctx, wanted); err != nil {
		return 0, err
	}
	run := map[string]bool{}
	for len(run) < len(homes) {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case e, ok := <-events.ResultChan():
			if !ok { // a busy API server ends watches
				now, err := pods.List(ctx, all)
				if err != nil {
					return 0, err
				}
				for _, p := range now.Items {
					run[p.Name] = run[p.Name] || p.Status.Phase == corev1.PodRunning
				}
				maps.DeleteFunc(run, func(_ string, runs bool) bool { return !runs })
				if events, err = pods.Watch(ctx, metav1.ListOptions{LabelSelector: all.LabelSelector, ResourceVersion: now.ResourceVersion}); err != nil {
					return 0, err
				}
				continue
			}
			if p, is := e.Object.(*corev1.Pod); is && p.Status.Phase == corev1.PodRunning {
				run[p.Name] = true
			}
		}
	}
	took := time.Since(begun)
	used, err := programTimes()
	if err != nil {
		return 0, err
	}
	fmt.Printf("kubescale: %d Pods in %s; processor time of a %s: %s\n", len(homes), ms(took), what, usedPer(programs, used, len(homes)))
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return 0, err
	}
	for {
		left, err := pods.List(ctx, all)
		if err != nil || len(left.Items) == 0 {
			return took, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
