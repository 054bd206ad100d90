package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/atewf/atewf/gen"
	"github.com/atewf/atewf/gen/cluster"
	"github.com/atewf/atewf/gen/snapshot"
	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

// enum is a flag that takes one of a few values.
type enum[T ~string] struct {
	value  *T
	values []T
}

var _ pflag.Value = enum[string]{}

func (e enum[T]) String() string {
	if e.value == nil {
		return ""
	}
	return string(*e.value)
}

func (e enum[T]) Set(s string) error {
	if !slices.Contains(e.values, T(s)) {
		return fmt.Errorf("want %s", e.Type())
	}
	*e.value = T(s)
	return nil
}

// Type is what --help shows for the value.
func (e enum[T]) Type() string {
	var s []string
	for _, v := range e.values {
		s = append(s, string(v))
	}
	return strings.Join(s, "|")
}

// enumFlag adds a flag for one of a few values, and its completion.
func enumFlag[T ~string](cmd *cobra.Command, value *T, name, usage string, values ...T) {
	e := enum[T]{value, values}
	cmd.Flags().Var(e, name, usage)
	must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(strings.Split(e.Type(), "|"), cobra.ShellCompDirectiveNoFileComp)))
}

// must stands where only a fault of the program can fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// joined makes one error of several, nil of none.
func joined(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	lines := make([]string, len(errs))
	for i, err := range errs {
		lines[i] = strings.ReplaceAll(err.Error(), "\n", "\n  ")
	}
	return errors.New(strings.Join(lines, "\nerror: "))
}

// source are the flags that say which cluster is read, and how.
type source struct {
	streams genericiooptions.IOStreams
	now     func() time.Time
	config  *genericclioptions.ConfigFlags

	mode                         cluster.Mode
	namespace                    string
	endpoint, tokenFile          string
	caFile, serverName, audience string
	acceptFields                 []string
}

func newSource(streams genericiooptions.IOStreams, now func() time.Time) *source {
	c := genericclioptions.NewConfigFlags(true)
	// Flags of kubectl that make no sense for a program that reads a cluster once.
	c.CacheDir, c.CertFile, c.KeyFile, c.DisableCompression, c.ImpersonateUID = nil, nil, nil, nil, nil
	return &source{streams: streams, now: now, config: c, mode: cluster.Auto}
}

func (s *source) bind(cmd *cobra.Command) {
	s.config.AddFlags(cmd.Flags())
	f := cmd.Flags()
	enumFlag(cmd, &s.mode, "substrate", "the Control API of Agent Substrate: read it where it can be reached (auto), fail where not (require), or plan from Kubernetes alone (skip)",
		cluster.Auto, cluster.Require, cluster.Skip)
	f.StringVar(&s.namespace, "substrate-namespace", versions.Namespace, "namespace of Agent Substrate")
	f.StringVar(&s.endpoint, "endpoint", "", "host:port at which the Control API is reached from here; without it, a port is forwarded through the API server")
	f.StringVar(&s.tokenFile, "token-file", "", "file with the bearer token for the Control API; without it, a token of ServiceAccount ate-client is asked for")
	f.StringVar(&s.caFile, "ca-file", "", "file with the authority of the Control API's certificate; without it, the ClusterTrustBundles are read")
	f.StringVar(&s.serverName, "server-name", substrate.ServerName, "name on the certificate of the Control API")
	f.StringVar(&s.audience, "audience", substrate.Audience, "audience of tokens for the Control API")
	f.StringSliceVar(&s.acceptFields, "accept-field", nil, "field of the Control API, as Message.field, that this version does not know and that shall be passed over")
	for _, name := range []string{"token-file", "ca-file", "kubeconfig"} {
		must(cmd.MarkFlagFilename(name))
	}
	must(cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		raw, err := s.config.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for name := range raw.Contexts {
			names = append(names, name)
		}
		slices.Sort(names)
		return names, cobra.ShellCompDirectiveNoFileComp
	}))
}

// completeNodes lists the nodes, for the flags that name some.
func (s *source) completeNodes(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	const shell = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	cfg, err := s.config.ToRESTConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Second)
	defer cancel()
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	l, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	before := "" // the names that are there already
	if i := strings.LastIndexByte(typed, ','); i >= 0 {
		before = typed[:i+1]
	}
	var out []string
	for _, n := range l.Items {
		if !slices.Contains(strings.Split(before, ","), n.Name) {
			out = append(out, before+n.Name)
		}
	}
	return out, shell
}

// reader makes what reads the cluster.
func (s *source) reader() (gen.Reader, error) {
	cfg, err := s.restConfig()
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a Kubernetes client: %w", err)
	}
	binary := rest.CopyConfig(cfg)
	binary.ContentType = "application/vnd.kubernetes.protobuf"
	binary.AcceptContentTypes = binary.ContentType + ",application/json"
	kube, err := kubernetes.NewForConfig(binary)
	if err != nil {
		return nil, fmt.Errorf("making a Kubernetes client: %w", err)
	}
	name, err := s.clusterName()
	if err != nil {
		return nil, err
	}
	dialer := cluster.Dialer{
		Kube: kube, Config: cfg, Namespace: s.namespace, Endpoint: s.endpoint, TokenFile: s.tokenFile, CAFile: s.caFile,
		ServerName: s.serverName, Audience: s.audience, AcceptFields: s.acceptFields, Now: s.now,
	}
	return cluster.New(kube, dyn, cluster.Options{Cluster: name, Namespace: s.namespace, Mode: s.mode, Dial: dialer.Dial, Now: s.now}), nil
}

func (s *source) restConfig() (*rest.Config, error) {
	cfg, err := s.config.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w; pass --kubeconfig or --context, or plan from a file with --snapshot", err)
	}
	// Without any configuration kubectl's flags lead to a port that nobody has listened on for years.
	if raw, err := s.config.ToRawKubeConfigLoader().RawConfig(); err == nil && len(raw.Clusters) == 0 && cfg.Host == "http://localhost:8080" && ptr.Deref(s.config.APIServer, "") == "" {
		return nil, errors.New("finding the cluster: there is no kubeconfig, and this is no pod; pass --kubeconfig or --context, or plan from a file with --snapshot")
	}
	cfg.QPS, cfg.Burst = 50, 100
	cfg.UserAgent = rest.DefaultKubernetesUserAgent()
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	return cfg, nil
}

// clusterName is how the kubeconfig names the cluster; nothing inside a cluster.
func (s *source) clusterName() (snapshot.Cluster, error) {
	raw, err := s.config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return snapshot.Cluster{}, fmt.Errorf("reading the kubeconfig: %w; pass another with --kubeconfig", err)
	}
	c := snapshot.Cluster{Context: raw.CurrentContext}
	if n := ptr.Deref(s.config.Context, ""); n != "" {
		c.Context = n
	}
	if ctx := raw.Contexts[c.Context]; ctx != nil {
		c.Name = ctx.Cluster
	}
	if n := ptr.Deref(s.config.ClusterName, ""); n != "" {
		c.Name = n
	}
	return c, nil
}

// stored reads a snapshot that was kept.
type stored struct {
	streams genericiooptions.IOStreams
	file    string
}

// Read reads the file, or standard input for -.
func (s stored) Read(context.Context) (*snapshot.Snapshot, error) {
	if s.file != "-" {
		return snapshot.ReadFile(s.file)
	}
	data, err := readFile(s.streams, s.file)
	if err != nil {
		return nil, err
	}
	return snapshot.Read("on standard input", data)
}
