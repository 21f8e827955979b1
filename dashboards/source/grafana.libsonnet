// The few parts of Grafana's dashboard model that our dashboards are made of.
//
//   local g = import 'grafana.libsonnet';
//   g.dashboard('uid', 'Title', 'What it answers.', variables, annotations, g.layout([
//     g.row('Question', 6, [g.timeseries('Title', 's', 'What it shows.', [g.query(EXPR, 'legend')])]),
//   ]))
//
// A panel takes the share of its row's width that `width` says; without it, all in a row the same.
local datasource = { type: 'prometheus', uid: '${datasource}' };

local columns = 24;

local threshold_steps(steps) = {
  mode: 'absolute',
  // The first step has no lower bound.
  steps: [{ color: steps[0], value: null }] +
         [{ color: steps[i], value: steps[i - 1] } for i in std.range(1, std.length(steps) - 1) if i % 2 == 0],
};

local with_ref_ids(targets) = std.mapWithIndex(
  function(i, target) target { refId: std.char(std.codepoint('A') + i) }, targets
);

local panel(type, title, unit, description, targets) = {
  type: type,
  title: title,
  description: description,
  datasource: datasource,
  fieldConfig: { defaults: { unit: unit }, overrides: [] },
  options: {},
  targets: with_ref_ids(targets),
};

{
  datasource: datasource,

  // --- Queries -----------------------------------------------------------------------------------
  query(expr, legend):: {
    datasource: datasource,
    editorMode: 'code',
    expr: expr,
    legendFormat: legend,
    range: true,
    instant: false,
  },
  // The value at the end of the time range.
  instant(expr, legend):: self.query(expr, legend) { range: false, instant: true },
  // Rows of a table.
  rows(expr, legend):: self.instant(expr, legend) { format: 'table' },
  // Buckets of a histogram, for a heat map.
  buckets(expr):: self.query(expr, '{{le}}') { format: 'heatmap' },

  // --- Panels ------------------------------------------------------------------------------------
  timeseries(title, unit, description, targets):: panel('timeseries', title, unit, description, targets) {
    fieldConfig+: { defaults+: {
      custom: {
        drawStyle: 'line',
        lineWidth: 1,
        fillOpacity: 0,
        showPoints: 'auto',
        // Scrapes that failed leave no hole; a coordinator that was away does.
        spanNulls: 120000,
      },
    } },
    options: {
      legend: { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [] },
      tooltip: { mode: 'multi', sort: 'desc' },
    },
  },

  // `steps`: a colour, then lower bound and colour of each further step.
  stat(title, unit, description, target, steps):: panel('stat', title, unit, description, [target]) {
    fieldConfig+: { defaults+: { thresholds: threshold_steps(steps), color: { mode: 'thresholds' } } },
    options: {
      reduceOptions: { calcs: ['lastNotNull'], fields: '', values: false },
      colorMode: 'value',
      graphMode: 'none',
      textMode: 'auto',
      justifyMode: 'auto',
      orientation: 'auto',
    },
  },

  heatmap(title, unit, description, expr):: panel('heatmap', title, unit, description, [self.buckets(expr)]) {
    // Buckets of a heat map are written with the unit of the y axis.
    options: {
      calculate: false,
      yAxis: { unit: unit, axisPlacement: 'left' },
      rowsFrame: { layout: 'auto' },
      color: { mode: 'scheme', scheme: 'Oranges', steps: 32, exponent: 0.5 },
      cellGap: 1,
      legend: { show: true },
      tooltip: { mode: 'single', yHistogram: false },
    },
  },

  // `names`: titles of columns by field; fields that are not named are left out.
  table(title, unit, description, targets, names, overrides=[]):: panel('table', title, unit, description, targets) {
    fieldConfig+: { defaults+: { custom: { align: 'auto', filterable: false } }, overrides: overrides },
    options: { showHeader: true, cellHeight: 'sm' },
    transformations: [
      { id: 'merge', options: {} },
      {
        id: 'filterFieldsByName',
        options: { include: { names: std.objectFieldsAll(names) } },
      },
      {
        id: 'organize',
        options: {
          renameByName: { [field]: names[field][1] for field in std.objectFields(names) },
          indexByName: { [field]: names[field][0] for field in std.objectFields(names) },
        },
      },
    ],
  },

  // --- Changes to panels -------------------------------------------------------------------------
  width(columns):: { gridPos+: { w: columns } },
  // Queries of rates look at a minute at least, so that steps of tens of seconds leave no holes.
  per_step:: { interval: '1m' },
  stacked:: { fieldConfig+: { defaults+: { custom+: { stacking: { mode: 'normal', group: 'A' }, fillOpacity: 40, lineWidth: 0 } } } },
  bounds(min, max=null):: { fieldConfig+: { defaults+: { min: min, [if max != null then 'max']: max } } },
  decimals(n):: { fieldConfig+: { defaults+: { decimals: n } } },
  logarithmic:: { fieldConfig+: { defaults+: { custom+: { scaleDistribution: { type: 'log', log: 10 } } } } },
  instants:: { fieldConfig+: { defaults+: { custom+: { drawStyle: 'bars', fillOpacity: 60, lineWidth: 0 } } } },
  // Another unit for what a query with this legend gives.
  unit_of(legend, unit):: {
    fieldConfig+: { overrides+: [{
      matcher: { id: 'byName', options: legend },
      properties: [{ id: 'unit', value: unit }, { id: 'custom.axisPlacement', value: 'right' }],
    }] },
  },
  legend_table:: { options+: { legend+: { displayMode: 'table', calcs: ['mean', 'max', 'lastNotNull'] } } },
  // Words for values: 0 is `words[0]` in red, 1 is `words[1]` in green.
  words(words):: {
    fieldConfig+: { defaults+: { mappings: [{
      type: 'value',
      options: {
        '0': { index: 0, text: words[0], color: 'red' },
        '1': { index: 1, text: words[1], color: 'green' },
      },
    }] } },
  },
  // Shows the name that the legend makes instead of the value.
  name_only:: { options+: { textMode: 'name' } },

  // --- Layout ------------------------------------------------------------------------------------
  row(title, height, panels):: { title: title, height: height, panels: panels },
  // A row without a heading.
  strip(height, panels):: { title: null, height: height, panels: panels },

  layout(rows):: std.foldl(function(done, row)
    local wanted = std.foldl(function(sum, p) sum + (if std.objectHas(p, 'gridPos') then p.gridPos.w else 0), row.panels, 0);
    local shared = std.length([p for p in row.panels if !std.objectHas(p, 'gridPos')]);
    local width(p) = if std.objectHas(p, 'gridPos') then p.gridPos.w else std.floor((columns - wanted) / shared);
    local top = done.y + (if row.title == null then 0 else 1);
    local placed = std.foldl(function(line, p) {
      local w = width(p),
      x: line.x + w,
      panels: line.panels + [p { gridPos: { x: line.x, y: top, w: w, h: row.height } }],
    }, row.panels, { x: 0, panels: [] });
    assert placed.x <= columns : 'row "%s" is %d columns wide' % [row.title, placed.x];
    {
      y: top + row.height,
      panels: done.panels +
              (if row.title == null then [] else [{
                 type: 'row',
                 title: row.title,
                 collapsed: false,
                 panels: [],
                 gridPos: { x: 0, y: done.y, w: columns, h: 1 },
               }]) + placed.panels,
    }, rows, { y: 0, panels: [] }).panels,

  // --- Variables ---------------------------------------------------------------------------------
  datasource_variable:: {
    name: 'datasource',
    label: 'Data source',
    type: 'datasource',
    query: 'prometheus',
    regex: '',
    current: {},
    hide: 0,
    includeAll: false,
    multi: false,
    options: [],
    refresh: 1,
    skipUrlSync: false,
  },
  query_variable(name, label, query, all=false):: {
    name: name,
    label: label,
    type: 'query',
    datasource: datasource,
    definition: query,
    query: { qryType: 1, query: query, refId: 'PrometheusVariableQueryEditor-VariableQuery' },
    regex: '',
    current: {},
    hide: 0,
    includeAll: all,
    [if all then 'allValue']: '.*',
    multi: all,
    options: [],
    // Whenever the time range changes: jobs come and go.
    refresh: 2,
    sort: 1,
    skipUrlSync: false,
  },

  // --- Annotations -------------------------------------------------------------------------------
  annotation(name, color, expr, title, text):: {
    name: name,
    datasource: datasource,
    enable: true,
    hide: false,
    iconColor: color,
    expr: expr,
    step: '60s',
    titleFormat: title,
    textFormat: text,
    tagKeys: '',
    useValueForTime: false,
  },

  // --- Dashboard ---------------------------------------------------------------------------------
  link(title, uid, tooltip):: {
    type: 'link',
    title: title,
    tooltip: tooltip,
    url: '/d/' + uid,
    icon: 'dashboard',
    asDropdown: false,
    includeVars: true,
    keepTime: true,
    tags: [],
    targetBlank: false,
  },

  dashboard(uid, title, description, links, variables, annotations, panels):: {
    uid: uid,
    title: title,
    description: description,
    tags: ['sparsebalance'],
    schemaVersion: 39,
    version: 1,
    editable: true,
    graphTooltip: 1,  // one crosshair for all panels
    time: { from: 'now-1h', to: 'now' },
    timepicker: {},
    timezone: 'browser',
    refresh: '30s',
    fiscalYearStartMonth: 0,
    liveNow: false,
    links: links,
    templating: { list: variables },
    annotations: { list: [{
      name: 'Annotations & Alerts',
      builtIn: 1,
      datasource: { type: 'grafana', uid: '-- Grafana --' },
      enable: true,
      hide: true,
      iconColor: 'rgba(0, 211, 255, 1)',
      type: 'dashboard',
    }] + annotations },
    panels: std.mapWithIndex(function(i, p) p { id: i + 1 }, panels),
  },
}
